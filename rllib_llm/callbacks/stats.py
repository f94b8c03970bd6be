"""Statistic for exact means over several EnvRunners."""

from __future__ import annotations

from typing import Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics.stats import MeanStats

EPISODE_MEAN = "episode_mean"


class EpisodeMeanStats(MeanStats):
    """Mean of all values logged by all EnvRunners since the last report.

    RLlib's ``"mean"`` differs in two ways: each runner sends its mean, so that the root
    averages means over unequal numbers of episodes, and a window keeps its initial
    size. This class sends the values (one float per episode or turn) and clears them
    with every report.

    Log a number or a list of numbers with ``reduce="episode_mean"`` without a window.
    """

    stats_cls_identifier = EPISODE_MEAN

    @override(MeanStats)
    def push(self, value: float | list[float]) -> None:
        """Add one value or a list of values; one call for many is faster."""
        self.values.extend(value if isinstance(value, list) else [value])

    @override(MeanStats)
    def reduce(self, compile: bool = True) -> Any:
        """Return the mean, or a copy with all values, and clear the values."""
        if compile:
            return super().reduce(compile=True)
        report = self.clone()
        report.values = list(self.values)
        self._set_values([])
        return report
