"""Rejection of settings that would have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def refuse_without_effect(config: LLMConfig, names: tuple[str, ...], why: str) -> None:
    """Raise ConfigError if a setting was changed that nothing reads."""
    # Compared with a new config, because "was it given" is not recorded by RLlib.
    default = type(config)()
    for name in names:
        given = getattr(config, name)
        if given != getattr(default, name):
            raise ConfigError(f"{name}={given!r} would have no effect: {why}")
