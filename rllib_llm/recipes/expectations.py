"""What a recipe promises, and whether a run kept it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rllib_llm.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One expectation held against one trial.

    Attributes:
        trial: Name of the trial's folder.
        metric: Result key.
        value: Last reported value; None if it was never reported.
        bounds: ``{"min": .., "max": ..}``, either may be missing.
    """

    trial: str
    metric: str
    value: float | None
    bounds: dict[str, float]

    @property
    def ok(self) -> bool:
        """Whether the value was reported, is a number, and lies within bounds."""
        if self.value is None or math.isnan(self.value):
            return False
        low = self.bounds.get("min", -math.inf)
        return low <= self.value <= self.bounds.get("max", math.inf)


def check_expectations(expect: Any) -> dict[str, dict[str, float]]:
    """Return ``expect`` with every bound as ``{"min": .., "max": ..}``.

    Raises:
        ConfigError: If a bound is neither a number nor such a mapping.
    """
    expect = expect or {}
    if not isinstance(expect, dict):
        raise ConfigError(f"expect: {expect!r} must map result keys to numbers.")
    return {str(metric): _bounds(metric, given) for metric, given in expect.items()}


def _bounds(metric: str, given: Any) -> dict[str, float]:
    bounds = given if isinstance(given, dict) else {"min": given}
    numbers = all(
        isinstance(b, int | float) and not isinstance(b, bool) for b in bounds.values()
    )
    if not bounds or not numbers or not set(bounds) <= {"min", "max"}:
        raise ConfigError(
            f"expect.{metric}={given!r} must be a number (the least value) or a "
            "mapping such as {min: 0.5, max: 1.0}."
        )
    return bounds


def judge(
    expect: dict[str, dict[str, float]], results: dict[str, dict[str, Any]]
) -> list[Verdict]:
    """Hold expectations against the last values of every trial.

    Args:
        expect: From :func:`check_expectations`.
        results: Per trial, result keys (nested with ``/``) to last reported values.
    """
    return [
        Verdict(trial, metric, values.get(metric), bounds)
        for trial, values in results.items()
        for metric, bounds in expect.items()
    ]
