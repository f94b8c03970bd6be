"""Comparison of two runs: settings, results, and paired tests on the same tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.callbacks import result_keys
from rllib_llm.runs.folders import differing_keys, flat_recipe
from rllib_llm.runs.reading import Run
from rllib_llm.runs.seed_statistics import LEVEL, Interval, mean_interval

# Metrics that are compared if the runs report them.
SHOWN = (
    result_keys.RETURN,
    result_keys.SUCCESS,
    result_keys.EVAL_RETURN,
    result_keys.EVAL_SUCCESS,
    result_keys.TURNS,
    result_keys.TOKENS_PER_TURN,
    result_keys.INVALID,
    result_keys.SECONDS_TOTAL,
)
_NOT_COMPARED = ("name", "description")
_RESAMPLES = 9_999
_Z95 = 1.959964


@dataclasses.dataclass(frozen=True)
class Paired:
    """A paired test of two policies on the same tasks; differences are B minus A.

    Attributes:
        what: ``success`` or ``return``.
        n: Number of tasks.
        mean_a: Mean of A.
        mean_b: Mean of B.
        difference: Mean difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p_value: Two-sided p-value of the hypothesis of no difference.
        test: Name of the test.
    """

    what: str
    n: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p_value: float
    test: str


def paired_successes(a: Sequence[bool], b: Sequence[bool]) -> Paired:
    """Compare successes by McNemar's exact test.

    It uses only the tasks that exactly one policy solves. The interval is that of
    Agresti and Min (2005), which adds half an observation to each of the four outcomes,
    so that its width is not zero if all tasks agree.
    """
    from scipy import stats

    first, second = np.asarray(a, bool), np.asarray(b, bool)
    n = len(first)
    gained = int((~first & second).sum())
    lost = int((first & ~second).sum())
    discordant = gained + lost
    p_value = float(stats.binomtest(gained, discordant).pvalue) if discordant else 1.0
    up, down, total = (gained + 0.5) / (n + 2), (lost + 0.5) / (n + 2), n + 2
    half = _Z95 * float(np.sqrt((up + down - (up - down) ** 2) / total))
    return Paired(
        what="success",
        n=n,
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=(gained - lost) / n,
        low=max(-1.0, up - down - half),
        high=min(1.0, up - down + half),
        p_value=p_value,
        test="exact McNemar",
    )


def paired_returns(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Compare returns by a permutation test of the signs of their differences.

    The interval is a percentile bootstrap over tasks. Both use a fixed seed.
    """
    from scipy import stats

    first, second = np.asarray(a, float), np.asarray(b, float)
    differences = second - first
    rng = np.random.default_rng(0)
    p_value = 1.0
    if np.any(differences):
        p_value = stats.permutation_test(
            (second, first),
            lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=_RESAMPLES,
            batch=500,
            rng=rng,
        ).pvalue
    picks = rng.integers(len(differences), size=(_RESAMPLES, len(differences)))
    tails = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    low, high = np.percentile(differences[picks].mean(axis=1), tails)
    return Paired(
        what="return",
        n=len(differences),
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        p_value=float(p_value),
        test="paired permutation",
    )


def differences(a: Run, b: Run) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys in which two runs' recipes differ, with both values."""
    first, second = flat_recipe(a.recipe), flat_recipe(b.recipe)
    changed = differing_keys(a.recipe, b.recipe)
    return [
        (key, first.get(key), second.get(key))
        for key in changed
        if key not in _NOT_COMPARED
    ]


def last_values(run: Run) -> dict[str, Interval]:
    """Return mean and interval of the last values of the compared metrics."""
    intervals = {}
    for metric in SHOWN:
        values = [v for t in run.trials if (v := t.last(metric)) is not None]
        if values:
            intervals[metric] = mean_interval(values)
    return intervals
