"""Observation and action spaces of policies that are not language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.policy_mapping import mapped_policies

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

Spaces = tuple[gym.Space, gym.Space]


_OBSERVATION_SPACES = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)


def non_llm_spaces(config: LLMConfig) -> dict[str, Spaces]:
    """Return the spaces of each policy without a language model, by ModuleID.

    Raises:
        ConfigError: If an agent's spaces are not numeric, or agents of one policy
            have different spaces.
    """
    if not config.non_llm_module_ids:
        return {}
    env = config.make_text_env()
    mapped = mapped_policies(config, agents_of(env) or [])
    declared = {agent: env.number_spaces(agent) for agent in mapped}
    env.close()
    by_policy: dict[str, Spaces] = {}
    for agent, module_id in mapped.items():
        if module_id in config.non_llm_module_ids:
            of_agent = _checked(agent, module_id, declared[agent])
            if by_policy.setdefault(module_id, of_agent) != of_agent:
                raise ConfigError(
                    f"The agent {agent!r} has the spaces {_show(of_agent)}, but other "
                    f"agents of the policy {module_id!r} have "
                    f"{_show(by_policy[module_id])}; an RLModule has one observation "
                    "space and one action space. Give the agent a separate policy."
                )
    for module_id in config.non_llm_module_ids:
        spec = config.rl_module_of(module_id)
        given = spec.observation_space, spec.action_space
        spaces = by_policy.get(module_id) if None in given else given
        if spaces is None:
            raise ConfigError(
                f"The RLModule {module_id!r} has no agent to take its spaces from: "
                f"policy_mapping_fn gives {mapped}. Map an agent to it, pass an "
                "RLModuleSpec with observation_space and action_space, or remove the "
                "policy."
            )
        if by_policy.setdefault(module_id, spaces) != spaces:
            raise ConfigError(
                f"The RLModuleSpec of {module_id!r} has the spaces {_show(spaces)}, "
                f"but its agents have {_show(by_policy[module_id])}. Leave the spaces "
                "out of the RLModuleSpec; the agents' spaces are used."
            )
    return by_policy


def _checked(agent: str, module_id: str, spaces: Spaces | None) -> Spaces:
    if spaces is None:
        raise ConfigError(
            f"policy_mapping_fn gives the agent {agent!r} the policy {module_id!r}, an "
            "RLModule, which reads numbers; the environment declares text for that "
            "agent. Map the agent to a language model or a script, or let the "
            "environment declare a Box, Discrete or MultiDiscrete space "
            "(MultiAgentTextEnv: spaces_for())."
        )
    observed, acted = spaces
    if not isinstance(observed, _OBSERVATION_SPACES):
        raise ConfigError(
            f"The agent {agent!r} observes {observed}; an RLModule reads a Box, "
            "Discrete, MultiDiscrete or MultiBinary space. Let the environment flatten "
            "the observation."
        )
    is_continuous = isinstance(acted, gym.spaces.Box) and acted.dtype.kind == "f"
    is_discrete = isinstance(acted, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
    if not (is_continuous or is_discrete):
        raise ConfigError(
            f"The agent {agent!r} acts in {acted}; an RLModule acts in a Discrete, "
            "MultiDiscrete or float Box space. Let the environment declare one."
        )
    # RLlib's categorical distributions ignore `start` and would send shifted actions.
    if is_discrete and np.any(acted.start):
        raise ConfigError(
            f"The actions {acted} of {agent!r} do not start at 0, but those of RLlib's "
            "distributions do. Let the environment declare start=0 and add the offset "
            "itself."
        )
    return spaces


def _show(spaces: Spaces) -> str:
    return f"{spaces[0]} and {spaces[1]}"
