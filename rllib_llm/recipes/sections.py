"""YAML sections are fluent methods of the config class, their keys its keywords."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean

SECTIONS = (
    "language_model",
    "generation",
    "rollouts",
    "multi_agent",
    "league",
    "warm_start",
    "training",
    "alarms",
    "env_runners",
    "learners",
    "resources",
    "evaluation",
    "debugging",
    "reporting",
    "checkpointing",
    "fault_tolerance",
)

# Settings of RLlib that mean nothing for whole episodes of text, and what to use.
_WITHOUT_EFFECT = {
    ("training", "model"): "language_model.model",
    ("training", "train_batch_size"): "rollouts.episodes_per_iteration",
    ("training", "train_batch_size_per_learner"): "rollouts.episodes_per_iteration",
    ("env_runners", "rollout_fragment_length"): "rollouts.episodes_per_iteration",
}
# Values of these are Python objects, written as "package.module:Name".
_OBJECT_SUFFIXES = ("_class", "_cls", "_connector", "_function")


def section_keys(config_class: type[Any], section: str) -> list[str]:
    """Return the keywords that ``config_class().<section>(...)`` accepts.

    Signatures are followed through ``**kwargs`` up the class hierarchy; keywords that
    RLlib marks as deprecated are left out.
    """
    keys: dict[str, None] = {}
    for method in _methods(config_class, section):
        parameters = inspect.signature(method).parameters.values()
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and not _is_deprecated(p.default):
                keys.setdefault(p.name)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return [k for k in keys if (section, k) not in _WITHOUT_EFFECT]


def _methods(config_class: type[Any], section: str) -> list[Any]:
    """Return the methods whose keywords make up a section, most derived first."""
    found = [c.__dict__[section] for c in config_class.__mro__ if section in vars(c)]
    if section == "training" and hasattr(config_class, "_llm_training"):
        found.insert(0, config_class._llm_training)
    return found


def _is_deprecated(default: Any) -> bool:
    from ray._common.deprecation import DEPRECATED_VALUE

    return isinstance(default, int) and default == DEPRECATED_VALUE


def apply_section(config: Any, section: str, values: Any) -> None:
    """Call ``config.<section>(**values)`` after checking every key.

    Raises:
        ConfigError: For an unknown key, or a value that RLlib refuses.
    """
    if values is None:
        return
    if not hasattr(config, section):
        raise ConfigError(
            f"{section}: {type(config).__name__.removesuffix('Config')} has no such "
            "section. Leave it out, or choose an algo that has it."
        )
    if not isinstance(values, dict):
        raise ConfigError(
            f"{section}: {values!r} must be a mapping of settings, e.g. "
            f"{{{section_keys(type(config), section)[0]}: ...}}."
        )
    known = section_keys(type(config), section)
    for key in values:
        _check_key(str(key), section, known)
    keywords = {k: _as_object(k, v, section) for k, v in values.items()}
    try:
        getattr(config, section)(**keywords)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{section}: {error}") from error


def _check_key(key: str, section: str, known: list[str]) -> None:
    if key in known:
        return
    if (section, key) in _WITHOUT_EFFECT:
        raise ConfigError(
            f"{section}.{key} has no effect on language agents, whose batches are "
            f"whole episodes. Use {_WITHOUT_EFFECT[section, key]}."
        )
    raise ConfigError(
        f"Unknown setting {section}.{key}. {suggestion(key, known)}"
        f"Valid keys of {section}: {', '.join(known)}."
    )


def suggestion(name: str, known: Any) -> str:
    """Return ``"Did you mean 'x'? "``, or nothing where no name is near."""
    hint = did_you_mean(name, known)
    return f"{hint} " if hint.startswith("Did you mean") else ""


def _as_object(key: str, value: Any, section: str) -> Any:
    """Import what ``"package.module:Name"`` names, for settings that need an object."""
    is_named = isinstance(value, str) and ":" in value
    if not (is_named and key.endswith(_OBJECT_SUFFIXES)):
        return value
    module, _, name = value.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{section}.{key}={value!r} cannot be imported: {error}. Install the "
            "package, or put its folder on PYTHONPATH."
        ) from error
