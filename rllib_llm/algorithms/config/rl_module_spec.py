"""RLModuleSpec of a non-LLM policy."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.policy_mapping import imported


def as_spec(policy: str, given: object) -> RLModuleSpec:
    """Return the specification given by a policy's ``rl_module``.

    Args:
        policy: Name of the policy.
        given: An RLModuleSpec, or a mapping with ``module_class`` (None: that of
            RLlib's PPO) and ``model_config``.

    Raises:
        ConfigError: With the setting, the rule, and the remedy.
    """
    from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import (
        DefaultPPOTorchRLModule,
    )

    where = f"multi_agent.policies.{policy}.rl_module"
    if isinstance(given, RLModuleSpec):
        # The user's object must not change; a config may be validated twice.
        spec = copy.copy(given)
    elif given is None or isinstance(given, Mapping):
        for key in given or {}:
            if key not in ("module_class", "model_config"):
                raise ConfigError(
                    f"{where}.{key} is not a setting. "
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


def _check_class(where: str, module_class: object) -> None:
    from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
    from ray.rllib.core.rl_module.torch import TorchRLModule

    for needed, why in (
        (TorchRLModule, "because Learners train those"),
        (ValueFunctionAPI, "because RLlib's PPO calls its compute_values()"),
    ):
        if not (isinstance(module_class, type) and issubclass(module_class, needed)):
            raise ConfigError(
                f"{where}: module_class={module_class!r} must be a subclass of "
                f"{needed.__name__}, {why}. Derive it from DefaultPPOTorchRLModule, "
                "or leave module_class out."
            )


def _check_model_config(where: str, spec: RLModuleSpec, default: type[Any]) -> None:
    """Check for keys that RLlib's catalog would silently ignore."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    settings = model_config_of(spec)
    # A class of the user's own may read keys that RLlib does not know.
    if not issubclass(spec.module_class, default):
        return
    keys = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for key in settings:
        if key not in keys:
            raise ConfigError(
                f"{where}.model_config.{key} is not a setting of RLlib's "
                f"DefaultModelConfig. {did_you_mean(key, keys)}"
            )
    if settings.get("use_lstm"):
        raise ConfigError(
            f"{where}.model_config.use_lstm=True: no recurrent state is kept between "
            "turns. Leave it out, and put what must be remembered into observations."
        )


def model_config_of(spec: RLModuleSpec) -> dict[str, Any]:
    """Return the specification's ``model_config`` as a dictionary."""
    given = spec.model_config
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return dataclasses.asdict(given)
    return given or {}
