"""A mean that stays exact when several EnvRunners report."""

from __future__ import annotations

from typing import Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics.stats import MeanStats

EPISODE_MEAN = "episode_mean"


class EpisodeMeanStats(MeanStats):
    """The mean of all values logged since the last report, wherever they were logged.

    RLlib's ``"mean"`` differs in two ways: it sends each runner's mean, so that the
    root averages means of unequal numbers of episodes, and its window keeps the size
    it was first created with. Here runners send the values themselves (one float per
    episode or turn) and nothing is left over for the next report.

    Log with ``reduce="episode_mean"`` and no window, a number or a list of numbers.
    """

    stats_cls_identifier = EPISODE_MEAN

    @override(MeanStats)
    def push(self, value: float | list[float]) -> None:
        """Add one value or several: a call per value costs more than the value."""
        self.values.extend(value if isinstance(value, list) else [value])

    @override(MeanStats)
    def reduce(self, compile: bool = True) -> Any:
        """Return the mean, or a copy holding every value, and forget the values."""
        if compile:
            return super().reduce(compile=True)
        report = self.clone()
        report.values = list(self.values)
        self._set_values([])
        return report
