"""Settings of ``rollouts`` that save sampled episodes, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def validate_saving(config: LLMConfig) -> None:
    """Check ``save_episodes``, ``save_as`` and ``save_where``.

    Raises:
        ConfigError: If one is wrong or would have no effect.
    """
    given = config.save_episodes
    if not given:
        why = "nothing is saved. Set rollouts.save_episodes."
        refuse_without_effect(config, ("save_as", "save_where"), why)
        return
    if isinstance(given, str) and "://" in given:
        raise ConfigError(
            f"save_episodes={given!r} must be a folder that this machine can write. "
            "Copy its files afterwards."
        )
    Filters(config.save_where).try_out()
