"""Observation and action spaces of policies that are not language models."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.policy_mapping import mapped_policies

Spaces = tuple[gym.Space, gym.Space]


_READS = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)


def non_llm_spaces(config: Any) -> dict[str, Spaces]:
    """Return the environment's spaces of the agents of each classic policy.

    Raises:
        ConfigError: If they are not spaces of numbers, or not the same for all.
    """
    if not config.non_llm_module_ids:
        return {}
    env = config.make_text_env()
    mapped = mapped_policies(config, agents_of(env))
    declared = {agent: env.number_spaces(agent) for agent in mapped}
    env.close()
    found: dict[str, Spaces] = {}
    for agent, module_id in mapped.items():
        if module_id in config.non_llm_module_ids:
            spaces = _checked(agent, module_id, declared[agent])
            if found.setdefault(module_id, spaces) != spaces:
                raise ConfigError(
                    f"The agent {agent!r} has the spaces {_show(spaces)}, but others "
                    f"of the policy {module_id!r} have {_show(found[module_id])}; an "
                    "RLModule has one of each. Give the agent a policy of its own."
                )
    for module_id in config.non_llm_module_ids:
        spec = config.rl_module_of(module_id)
        own = spec.observation_space, spec.action_space
        if None in own:
            own = found.get(module_id)
        if own is None:
            raise ConfigError(
                f"The RLModule {module_id!r} has no agent to take its spaces from: "
                f"policy_mapping_fn gives {mapped}. Map one to it, give an "
                "RLModuleSpec with observation_space and action_space, or leave the "
                "policy out."
            )
        if found.setdefault(module_id, own) != own:
            raise ConfigError(
                f"The RLModuleSpec of {module_id!r} has the spaces {_show(own)}, but "
                f"its agents have {_show(found[module_id])}. Leave them out."
            )
    return found


def _checked(agent: str, module_id: str, spaces: Spaces | None) -> Spaces:
    if spaces is None:
        raise ConfigError(
            f"policy_mapping_fn gives the agent {agent!r} the policy {module_id!r}, an "
            "RLModule, which reads numbers; the environment declares text for that "
            "agent. Map it to a language model or a script, or let the environment "
            "declare a Box, Discrete or MultiDiscrete space (MultiAgentTextEnv: "
            "spaces_for())."
        )
    reads, acts = spaces
    if not isinstance(reads, _READS):
        raise ConfigError(
            f"The agent {agent!r} observes {reads}; an RLModule reads a Box, Discrete, "
            "MultiDiscrete or MultiBinary space. Let the environment flatten it."
        )
    is_real = isinstance(acts, gym.spaces.Box) and acts.dtype.kind == "f"
    is_whole = isinstance(acts, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
    if not (is_real or is_whole):
        raise ConfigError(
            f"The agent {agent!r} acts in {acts}; an RLModule acts in a Discrete, "
            "MultiDiscrete or float Box space. Let the environment declare one."
        )
    if is_whole and np.any(acts.start):
        raise ConfigError(
            f"The actions {acts} of {agent!r} do not start at 0, those of RLlib's "
            "distributions do. Let the environment shift them."
        )
    return spaces


def _show(spaces: Spaces) -> str:
    return f"{spaces[0]} and {spaces[1]}"
