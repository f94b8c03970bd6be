"""Histograms, carried by the result as transcripts are: one JSON string per report.

All of them have the same buckets, so that those of several EnvRunners, Learners or
micro-batches can be added up.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

HISTOGRAMS = "histograms"  # key below env_runners/ and learners/<module>/

_SECTIONS = ("env_runners", "evaluation", "learners")
_MAGNITUDES = np.logspace(-6, 4, 81)  # eight buckets for a factor of ten
LIMITS = np.concatenate([-_MAGNITUDES[::-1], [0.0], _MAGNITUDES, [np.inf]])
"""Upper limits of the buckets; a value on a limit belongs below it."""


@dataclasses.dataclass
class Histogram:
    """How often values fall into each bucket, and what the buckets lose.

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
    def of(cls, values: Any) -> Histogram | None:
        """Count values; None if there is no finite one."""
        values = np.asarray(values, np.float64)
        values = values[np.isfinite(values)]
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
        """Add up two."""
        return Histogram(
            self.counts + other.counts,
            min(self.low, other.low),
            max(self.high, other.high),
            self.total + other.total,
            self.squares + other.squares,
        )

    def to_list(self) -> list[Any]:
        """Return it as JSON can hold it, empty buckets left out."""
        filled = {int(i): int(self.counts[i]) for i in np.flatnonzero(self.counts)}
        return [filled, self.low, self.high, self.total, self.squares]

    @classmethod
    def from_list(cls, data: list[Any]) -> Histogram:
        """Return :meth:`to_list`'s origin."""
        counts = np.zeros(len(LIMITS), np.int64)
        for index, count in data[0].items():
            counts[int(index)] = count
        return cls(counts, *data[1:])


def log_histograms(
    metrics: Any, values: Mapping[str, Any], module_id: str | None = None
) -> None:
    """Log the distribution of some values by name.

    Args:
        metrics: RLlib's MetricsLogger.
        values: Arrays by name.
        module_id: Whose they are; None: of the run.
    """
    found = {name: Histogram.of(each) for name, each in values.items()}
    data = {name: h.to_list() for name, h in found.items() if h is not None}
    if data:
        key = HISTOGRAMS if module_id is None else (module_id, HISTOGRAMS)
        metrics.log_value(key, json.dumps(data), reduce="item_series")


def read_histograms(result: dict[str, Any]) -> dict[str, Histogram]:
    """Return the histograms of an iteration's result, e.g. ``env_runners/returns``."""
    found: dict[str, Histogram] = {}
    for prefix, holder in _holders(result):
        items = holder[HISTOGRAMS]
        for item in [items] if isinstance(items, str) else items:
            for name, data in json.loads(item).items():
                key, histogram = f"{prefix}/{name}", Histogram.from_list(data)
                known = found.get(key)
                found[key] = histogram if known is None else known + histogram
    return found


def pop_histograms(result: dict[str, Any]) -> None:
    """Take them out of ``result``."""
    for _, holder in list(_holders(result)):
        del holder[HISTOGRAMS]


def without_histograms(result: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``result`` that lacks histograms (other values are shared)."""
    return {k: _bare(v) if k in _SECTIONS else v for k, v in result.items()}


def _bare(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {k: _bare(v) for k, v in part.items() if k != HISTOGRAMS}


def _holders(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a result that hold histograms, and their prefixes."""
    parts = [("env_runners", result.get("env_runners"))]
    evaluation = result.get("evaluation")
    if isinstance(evaluation, dict):
        parts.append(("evaluation/env_runners", evaluation.get("env_runners")))
    learners = result.get("learners")
    if isinstance(learners, dict):
        parts += [(f"learners/{m}", part) for m, part in learners.items()]
    for prefix, part in parts:
        # RLlib reports a series without items as NaN or [].
        if isinstance(part, dict) and isinstance(part.get(HISTOGRAMS), str | list):
            yield prefix, part
