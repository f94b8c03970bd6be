"""Storage of the settings given to fluent methods."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import NotProvided


def assign(config: Any, **settings: Any) -> None:
    """Set attributes of ``config``; ``NotProvided`` leaves them unchanged."""
    for name, value in settings.items():
        if value is not NotProvided:
            setattr(config, name, value)
