"""Expected results of a recipe (``expect``) and their check after a run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypedDict

from rllib_llm.errors import ConfigError
from rllib_llm.schema import require


class _Bounds(TypedDict, total=False):
    min: float
    max: float


@dataclasses.dataclass(frozen=True)
class ExpectationResult:
    """The outcome of one expectation for one trial.

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
        """True if the value was reported, is a number and is within the bounds."""
        if self.value is None:
            return False
        low = self.bounds.get("min", -math.inf)  # comparisons with NaN are False
        return low <= self.value <= self.bounds.get("max", math.inf)


def check_expectations(expect: Any) -> dict[str, dict[str, float]]:
    """Return ``expect`` with every bound as ``{"min": .., "max": ..}``.

    Raises:
        ConfigError: If a bound is neither a number nor such a mapping.
    """
    expect = {} if expect is None else expect
    require("expect", expect, dict[str, Any], "It maps result keys to numbers.")
    return {metric: _bounds(metric, given) for metric, given in expect.items()}


def _bounds(metric: str, given: Any) -> dict[str, float]:
    example = "Give the minimum, or a mapping such as {min: 0.5, max: 1.0}."
    require(f"expect.{metric}", given, float | _Bounds, example)
    bounds = given if isinstance(given, dict) else {"min": given}
    if not bounds or bounds.get("min", -math.inf) > bounds.get("max", math.inf):
        raise ConfigError(
            f"expect.{metric}={given!r} does not admit any value. {example}"
        )
    return bounds


def judge(
    expect: dict[str, dict[str, float]], results: dict[str, dict[str, Any]]
) -> list[ExpectationResult]:
    """Compare the last values of every trial with the expectations.

    Args:
        expect: From :func:`check_expectations`.
        results: Per trial, result keys (nested with ``/``) to last reported values.
    """
    return [
        ExpectationResult(trial, metric, values.get(metric), bounds)
        for trial, values in results.items()
        for metric, bounds in expect.items()
    ]
