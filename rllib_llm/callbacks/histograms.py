"""Histograms in results, as one JSON string per report.

All have the same buckets, so that those of several EnvRunners, Learners or
micro-batches can be added.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

HISTOGRAMS = "histograms"  # key below env_runners/ and learners/<module>/

_SECTIONS = ("env_runners", "evaluation", "learners")
_MAGNITUDES = np.logspace(-6, 4, 81)  # eight buckets per decade
LIMITS = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES, [np.inf]])
"""Inclusive upper limits of the buckets."""


@dataclasses.dataclass
class Histogram:
    """Counts per bucket, with the exact moments of the values.

    Attributes:
        counts: Values per bucket of ``LIMITS``.
        low: Smallest value.
        high: Largest value.
        total: Sum of values.
        squares: Sum of their squares.
    """

    counts: np.ndarray
    low: float
    high: float
    total: float
    squares: float

    @classmethod
    def of(cls, values: np.ndarray) -> Histogram | None:
        """Return the histogram of the finite values, None without any."""
        given = np.asarray(values, np.float64)
        values = given[np.isfinite(given)]
        if not values.size:
            return None
        return cls(
            np.bincount(np.searchsorted(LIMITS, values), minlength=len(LIMITS)),
            float(values.min()),
            float(values.max()),
            float(values.sum()),
            float(np.square(values).sum()),
        )

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of the values of both."""
        return Histogram(
            self.counts + other.counts,
            min(self.low, other.low),
            max(self.high, other.high),
            self.total + other.total,
            self.squares + other.squares,
        )

    def to_list(self) -> list[Any]:
        """Return the histogram as JSON data without empty buckets."""
        filled = {int(i): int(self.counts[i]) for i in np.flatnonzero(self.counts)}
        return [filled, self.low, self.high, self.total, self.squares]

    @classmethod
    def from_list(cls, data: list[Any]) -> Histogram:
        """Return the histogram from :meth:`to_list`."""
        counts = np.zeros(len(LIMITS), np.int64)
        for index, count in data[0].items():
            counts[int(index)] = count
        return cls(counts, *data[1:])


def log_histograms(
    metrics: MetricsLogger, values: Mapping[str, Any], module_id: str | None = None
) -> None:
    """Log the histograms of values by name.

    Args:
        metrics: RLlib's MetricsLogger.
        values: Arrays by name.
        module_id: Module of the values; None: the run.
    """
    histograms = {name: Histogram.of(each) for name, each in values.items()}
    data = {name: h.to_list() for name, h in histograms.items() if h is not None}
    if data:
        key = HISTOGRAMS if module_id is None else (module_id, HISTOGRAMS)
        metrics.log_value(key, json.dumps(data), reduce="item_series")


def read_histograms(result: dict[str, Any]) -> dict[str, Histogram]:
    """Return the histograms of an iteration's result, e.g. ``env_runners/returns``."""
    histograms: dict[str, Histogram] = {}
    for prefix, holder in _holders(result):
        items = holder[HISTOGRAMS]
        for item in [items] if isinstance(items, str) else items:
            for name, data in json.loads(item).items():
                key, histogram = f"{prefix}/{name}", Histogram.from_list(data)
                total = histograms.get(key)
                histograms[key] = histogram if total is None else total + histogram
    return histograms


def pop_histograms(result: dict[str, Any]) -> None:
    """Remove the histograms from ``result``."""
    for _, holder in list(_holders(result)):
        del holder[HISTOGRAMS]


def without_histograms(result: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``result`` without histograms (other values are shared)."""
    return {k: _bare(v) if k in _SECTIONS else v for k, v in result.items()}


def _bare(part: object) -> Any:
    if not isinstance(part, dict):
        return part
    return {k: _bare(v) for k, v in part.items() if k != HISTOGRAMS}


def _holders(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a result with histograms, and their prefixes."""
    parts = [("env_runners", result.get("env_runners"))]
    evaluation = result.get("evaluation")
    if isinstance(evaluation, dict):
        parts.append(("evaluation/env_runners", evaluation.get("env_runners")))
    learners = result.get("learners")
    if isinstance(learners, dict):
        parts += [(f"learners/{m}", part) for m, part in learners.items()]
    for prefix, part in parts:
        # RLlib reports an empty series as NaN or [].
        if isinstance(part, dict) and isinstance(part.get(HISTOGRAMS), str | list):
            yield prefix, part
