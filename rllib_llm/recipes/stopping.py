"""Stopper of trials at the bounds of a recipe's ``stop``."""

from __future__ import annotations

from typing import Any

from ray.tune import Stopper
from ray.tune.utils.util import flatten_dict

from rllib_llm.errors import ConfigError, did_you_mean

# Prefixes of metrics that only iterations with an evaluation report.
_SPORADIC = ("evaluation/", "evaluation_before_training/")


class RecipeStopper(Stopper):
    """Ends a trial when any metric reaches its bound.

    Tune stores a plain ``stop`` dictionary inside every trial, so a resumed run could
    not change it. A Stopper belongs to the run.

    Args:
        stop: Result keys (nested with ``/``) to bounds.
    """

    def __init__(self, stop: dict[str, float]):
        self.stop = dict(stop)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        flat = flatten_dict(result, delimiter="/")
        for key in self.stop:
            if key not in flat and not key.startswith(_SPORADIC):
                raise ConfigError(
                    f"stop.{key}: the first iteration did not report this metric. "
                    f"{did_you_mean(key, flat)}"
                )
        return self.is_reached(flat)

    def is_reached(self, flat: dict[str, Any]) -> bool:
        """Return True if flattened results reach any bound."""
        return any(
            key in flat and flat[key] >= bound for key, bound in self.stop.items()
        )

    def stop_all(self) -> bool:
        """Return False: trials end independently."""
        return False
