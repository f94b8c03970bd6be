"""Means, intervals and tests over trials."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rllib_llm.runs.reading import Run, Trial

SEED = "seed"
LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over trials and its 95 % interval (Student's t).

    Attributes:
        mean: The mean.
        low: Lower end; None if there is only one value.
        high: Upper end; None if there is only one value.
        n: Number of values.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half of the interval's width."""
        return None if self.high is None else self.high - self.mean


def mean_interval(values: Sequence[float]) -> Interval:
    """Return mean and interval of at least one value.

    With few seeds and returns that are not normal, the interval is only an error bar.
    """
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Interval(mean, None, None, n)
    from scipy import stats

    quantile = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1))
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


@dataclasses.dataclass(frozen=True)
class Setting:
    """Trials that differ only in their seed.

    Attributes:
        params: The searched settings without the seed.
        trials: The trials, at least one.
    """

    params: dict[str, Any]
    trials: tuple[Trial, ...]

    def final(self, metric: str) -> Interval | None:
        """Return mean and interval of the last reported values."""
        return _interval(t.last(metric) for t in self.trials)

    def best(self, metric: str, mode: str) -> Interval | None:
        """Return mean and interval of each trial's best value."""
        return _interval(t.best(metric, mode) for t in self.trials)

    def curve(self, metric: str) -> list[tuple[int, Interval]]:
        """Return mean and interval at every iteration that all trials report.

        Trials without a value are excluded, and so are iterations that only some trials
        have reached: the mean would jump where a trial ends.
        """
        curves = [dict(zip(*t.curve(metric), strict=True)) for t in self.trials]
        curves = [c for c in curves if c]
        common = set.intersection(*(set(c) for c in curves)) if curves else set()
        return [(i, mean_interval([c[i] for c in curves])) for i in sorted(common)]


def _interval(values: Iterable[float | None]) -> Interval | None:
    reported = [v for v in values if v is not None]
    return mean_interval(reported) if reported else None


def settings_of(run: Run) -> list[Setting]:
    """Return the settings of a run in the order of their first trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in run.trials:
        groups.setdefault(hashable(without_seed(trial.params)), []).append(trial)
    return [
        Setting(without_seed(group[0].params), tuple(group))
        for group in groups.values()
    ]


def without_seed(params: dict[str, Any]) -> dict[str, Any]:
    """Return ``params`` without the seed."""
    return {k: v for k, v in params.items() if k != SEED}


def hashable(value: object) -> str:
    """Return a string that is the same for equal values."""
    return json.dumps(value, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Effect:
    """The effect of a searched setting on the metric.

    Attributes:
        name: The config key.
        levels: The metric for each value of the setting, best first; empty if every
            trial has another value.
        share: Share of the variance between trials explained by the setting (eta
            squared); without levels, the squared rank correlation of Spearman.
        trend: The rank correlation; None with levels.
        p_value: p-value of the hypothesis of no effect (Kruskal-Wallis, or of the
            correlation); None if it cannot be tested.
    """

    name: str
    levels: tuple[tuple[Any, Interval], ...]
    share: float
    trend: float | None
    p_value: float | None


def effects(run: Run, metric: str, mode: str = "max") -> list[Effect]:
    """Return the effect of each searched setting, largest first.

    The seed is included for comparison. p-values are not corrected for testing several
    settings.
    """
    by_setting = []
    trials = [t for t in run.trials if t.last(metric) is not None]
    for name in run.trials[0].params:
        effect = _effect(name, trials, metric, mode)
        if effect is not None:
            by_setting.append(effect)
    return sorted(by_setting, key=lambda e: -e.share)


def _effect(name: str, trials: list[Trial], metric: str, mode: str) -> Effect | None:
    by_value: dict[str, list[float]] = {}
    shown: dict[str, Any] = {}
    for trial in trials:
        key = hashable(trial.params[name])
        shown[key] = trial.params[name]
        value = trial.last(metric)
        assert value is not None  # effects() leaves trials without a value out
        by_value.setdefault(key, []).append(value)
    if len(by_value) < 2:
        return None
    if len(by_value) == len(trials):
        return _trend(name, shown, by_value)
    levels = [(shown[key], mean_interval(v)) for key, v in by_value.items()]
    levels.sort(key=lambda level: level[1].mean, reverse=mode == "max")
    groups = list(by_value.values())
    share, p_value = _between_groups(groups)
    return Effect(name, tuple(levels), share, None, p_value)


def _between_groups(groups: list[list[float]]) -> tuple[float, float | None]:
    """Return eta squared and the p-value of Kruskal-Wallis."""
    from scipy import stats

    everything = np.concatenate(groups)
    total = float(((everything - everything.mean()) ** 2).sum())
    if total == 0:
        return 0.0, None
    between = sum(len(g) * (np.mean(g) - everything.mean()) ** 2 for g in groups)
    return float(between) / total, float(stats.kruskal(*groups).pvalue)


def _trend(
    name: str, shown: dict[str, Any], by_value: dict[str, list[float]]
) -> Effect | None:
    """Return the rank correlation of a numeric setting with a value per trial."""
    from scipy import stats

    values = [shown[key] for key in by_value]
    numeric = all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )
    finals = [v[0] for v in by_value.values()]
    if not numeric or len(values) < 3 or len(set(finals)) == 1:
        return None
    result = stats.spearmanr(values, finals)
    trend = float(result.statistic)
    return Effect(name, (), trend**2, trend, float(result.pvalue))
