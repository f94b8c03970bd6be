"""Policies that are classic RLModules: what they are, read, and may be told."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_llm.algorithms.policies import mapped_policies
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError, did_you_mean

Spaces = tuple[gym.Space, gym.Space]
_READS = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)


# What they are ------------------------------------------------------------------------


def as_spec(policy: str, given: Any) -> RLModuleSpec:
    """Return the specification that a policy's ``rl_module`` stands for.

    Args:
        policy: Its name.
        given: An RLModuleSpec, or its ``module_class`` (None: that of RLlib's PPO) and
            ``model_config`` in a mapping.

    Raises:
        ConfigError: Naming the setting, the rule, and the remedy.
    """
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import (
        DefaultPPOTorchRLModule,
    )

    where = f"multi_agent.policies.{policy}.rl_module"
    if isinstance(given, RLModuleSpec):
        spec = copy.copy(given)
    elif given is None or isinstance(given, Mapping):
        for key in given or {}:
            if key not in ("module_class", "model_config"):
                raise ConfigError(
                    f"{where}.{key} is no setting. "
                    f"{did_you_mean(key, ('module_class', 'model_config'))}"
                )
        spec = RLModuleSpec(**(given or {}))
    else:
        raise ConfigError(
            f"{where}={given!r} must be a mapping with module_class and model_config, "
            "or an RLModuleSpec; {} is RLlib's default MLP."
        )
    if isinstance(spec.module_class, str):
        from rllib_llm.algorithms.settings.multi_agent import imported

        spec.module_class = imported(f"{where}.module_class", spec.module_class)
    spec.module_class = spec.module_class or DefaultPPOTorchRLModule
    _check_class(where, spec.module_class)
    _check_model_config(where, spec, DefaultPPOTorchRLModule)
    return spec


def _check_class(where: str, module_class: Any) -> None:
    from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
    from ray.rllib.core.rl_module.torch import TorchRLModule

    for needed, why in (
        (TorchRLModule, "which is what Learners train"),
        (ValueFunctionAPI, "whose compute_values() RLlib's PPO asks"),
    ):
        if not (isinstance(module_class, type) and issubclass(module_class, needed)):
            raise ConfigError(
                f"{where}: module_class={module_class!r} must be a subclass of "
                f"{needed.__name__}, {why}. Derive it from DefaultPPOTorchRLModule, "
                "or leave module_class out."
            )


def _check_model_config(where: str, spec: RLModuleSpec, default: type[Any]) -> None:
    """Check the keys that RLlib's catalog would silently ignore."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    settings = _model_config(spec)
    if not issubclass(spec.module_class, default):
        return
    known = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for key in settings:
        if key not in known:
            raise ConfigError(
                f"{where}.model_config.{key} is no setting of RLlib's "
                f"DefaultModelConfig. {did_you_mean(key, known)}"
            )
    if settings.get("use_lstm"):
        raise ConfigError(
            f"{where}.model_config.use_lstm=True: seats keep no recurrent state. Leave "
            "it out, and let the environment observe what must be remembered."
        )


def _model_config(spec: RLModuleSpec) -> dict[str, Any]:
    given = spec.model_config
    return dataclasses.asdict(given) if dataclasses.is_dataclass(given) else given or {}


def classic_specs(config: Any, *, inference_only: bool) -> dict[str, RLModuleSpec]:
    """Return the complete specification of each classic policy, by ModuleID."""
    from rllib_llm.env_runner.classic_seats import encoded_space

    found = {}
    for module_id, (reads, acts) in classic_spaces(config).items():
        spec = found[module_id] = copy.copy(config.rl_module_of(module_id))
        spec.observation_space, spec.action_space = encoded_space(reads), acts
        # RLlib's order: what .rl_module(model_config=) says, and the policy's own.
        spec.model_config = config.model_config | _model_config(spec)
        spec.inference_only = inference_only
    return found


# What they read -----------------------------------------------------------------------


def classic_spaces(config: Any) -> dict[str, Spaces]:
    """Return the environment's spaces of the agents of each classic policy.

    Raises:
        ConfigError: If they are not spaces of numbers, or not the same for all.
    """
    if not config.classic_module_ids:
        return {}
    env = config.make_text_env()
    mapped = mapped_policies(config, agents_of(env))
    declared = {agent: env.number_spaces(agent) for agent in mapped}
    env.close()
    found: dict[str, Spaces] = {}
    for agent, module_id in mapped.items():
        if module_id in config.classic_module_ids:
            spaces = _checked(agent, module_id, declared[agent])
            if found.setdefault(module_id, spaces) != spaces:
                raise ConfigError(
                    f"The agent {agent!r} has the spaces {_show(spaces)}, but others "
                    f"of the policy {module_id!r} have {_show(found[module_id])}; an "
                    "RLModule has one of each. Give the agent a policy of its own."
                )
    for module_id in config.classic_module_ids:
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


# Checks -------------------------------------------------------------------------------


def validate_classic(config: Any) -> None:
    """Check that classic policies, agents and algorithm fit together.

    Raises:
        ConfigError: Naming the agent or policy, the rule, and the remedy.
    """
    env = config.make_text_env()
    agents = agents_of(env)
    numbers = [a for a in agents or () if env.number_spaces(a) is not None]
    env.close()
    classic = config.classic_module_ids
    mapped = mapped_policies(config, agents) if numbers else {}
    for agent in numbers:
        if mapped[agent] not in classic:
            raise ConfigError(
                f"The agent {agent!r} reads and acts in numbers, but the policy "
                f"{mapped[agent]!r} that policy_mapping_fn gives it speaks text. Map "
                "it to a policy with rl_module: {}, or let the environment render text."
            )
    if not classic:
        return
    classic_spaces(config)
    if not config.llm_module_ids:
        raise ConfigError(
            f"The policies {', '.join(config.module_ids)} hold no language model. Use "
            "RLlib's own PPO for RLModules alone."
        )
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            f"The RLModule {classic[0]!r} beside language models needs LLMEnvRunner, "
            f"not {config.env_runner_cls.__name__}. Leave env_runner_cls out."
        )
    if config.trained_classic_ids and not config.use_critic:
        raise ConfigError(
            f"The RLModule {config.trained_classic_ids[0]!r} is trained by RLlib's PPO "
            f"with a critic; {type(config).__name__.removesuffix('Config')} has none. "
            "Use LLMPPO or MARFT, or leave it out of policies_to_train."
        )
