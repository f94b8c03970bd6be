"""Application of YAML sections: each is a fluent method, its keys are keywords."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.schema import SECTIONS, section_keys
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.imports import import_object
from rllib_llm.schema import show

if TYPE_CHECKING:
    from rllib_llm.rllib_bases import RLlibConfig

__all__ = ["SECTIONS", "apply_section", "section_keys", "suggestion"]

# Values of these are Python objects, given as "package.module:Name".
_OBJECT_SUFFIXES = ("_class", "_cls", "_connector", "_function")


def apply_section(config: RLlibConfig, section: str, values: object) -> None:
    """Call ``config.<section>(**values)`` after checking every key.

    Raises:
        ConfigError: For an unknown key, or a value that RLlib refuses.
    """
    if values is None:
        return
    # Not every algorithm has every section: league is self-play's alone.
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
        # It names the setting already.
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{section}: {error}") from error


def suggestion(name: str, names: Collection[str]) -> str:
    """Return ``"Did you mean 'x'? "``, or nothing if no name is similar."""
    hint = did_you_mean(name, names)
    return f"{hint} " if hint.startswith("Did you mean") else ""


def _as_object(key: str, value: object, section: str) -> object:
    """Import the object ``"package.module:Name"``, for settings that need an object."""
    if isinstance(value, str) and ":" in value and key.endswith(_OBJECT_SUFFIXES):
        return import_object(value, f"{section}.{key}")
    return value
