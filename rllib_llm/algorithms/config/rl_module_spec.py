"""RLModuleSpec of a policy that is not a language model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.policy_mapping import imported


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

    settings = model_config_of(spec)
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


def model_config_of(spec: RLModuleSpec) -> dict[str, Any]:
    """Return the specification's ``model_config`` as a dictionary."""
    given = spec.model_config
    return dataclasses.asdict(given) if dataclasses.is_dataclass(given) else given or {}
