"""Rejection of settings that would have no effect."""

from __future__ import annotations

from typing import Any

from rllib_llm.errors import ConfigError


def refuse_without_effect(config: Any, names: tuple[str, ...], why: str) -> None:
    """Raise ConfigError if a setting was changed that nothing reads."""
    default = type(config)()
    for name in names:
        given = getattr(config, name)
        if given != getattr(default, name):
            raise ConfigError(f"{name}={given!r} would have no effect: {why}")
