"""Application of YAML sections: each is a fluent method, its keys are keywords."""

from __future__ import annotations

from typing import Any

from rllib_llm.algorithms.config.schema import SECTIONS, section_keys
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.imports import import_object
from rllib_llm.schema import show

__all__ = ["SECTIONS", "apply_section", "section_keys", "suggestion"]

# Values of these are Python objects, given as "package.module:Name".
_OBJECT_SUFFIXES = ("_class", "_cls", "_connector", "_function")


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
            f"{section}: {show(values)} must be a mapping of settings: "
            f"{', '.join(section_keys(type(config), section))}."
        )
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(
                f"{section}: the key {show(key, 60)} must be the name of a setting: "
                f"{', '.join(section_keys(type(config), section))}."
            )
    keywords = {k: _as_object(k, v, section) for k, v in values.items()}
    try:
        getattr(config, section)(**keywords)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{section}: {error}") from error


def suggestion(name: str, names: Any) -> str:
    """Return ``"Did you mean 'x'? "``, or nothing if no name is similar."""
    hint = did_you_mean(name, names)
    return f"{hint} " if hint.startswith("Did you mean") else ""


def _as_object(key: str, value: Any, section: str) -> Any:
    """Import the object ``"package.module:Name"``, for settings that need an object."""
    is_named = isinstance(value, str) and ":" in value
    if not (is_named and key.endswith(_OBJECT_SUFFIXES)):
        return value
    return import_object(value, f"{section}.{key}")
