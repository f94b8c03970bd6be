"""Paired tests of two policies that played the same tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.success_statistics import Z95

if TYPE_CHECKING:
    from rllib_llm.evaluation.outcomes import Outcome

_LEVEL = 0.95
_RESAMPLES = 9_999


@dataclasses.dataclass(frozen=True)
class Paired:
    """A paired test of two policies on the same tasks; differences are B minus A.

    Attributes:
        what: ``success`` or ``return``.
        n: Number of tasks.
        mean_a: Mean of A.
        mean_b: Mean of B.
        difference: Mean difference.
        low: Lower end of its 95 % interval; None for the return of one task.
        high: Upper end; None for the return of one task.
        p_value: Two-sided p-value of the hypothesis of no difference.
        test: Name of the test.
    """

    what: str
    n: int
    mean_a: float
    mean_b: float
    difference: float
    low: float | None
    high: float | None
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
    half = Z95 * float(np.sqrt((up + down - (up - down) ** 2) / total))
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


def paired_means(a: Sequence[float], b: Sequence[float], what: str) -> Paired:
    """Compare numbers by a permutation test of the signs of their differences.

    The interval is a percentile bootstrap over tasks. Both use a fixed seed.

    Args:
        a: A's number of each task, e.g. the mean over its samples. [n]
        b: B's numbers of the same tasks. [n]
        what: ``success`` or ``return``.
    """
    from scipy import stats

    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    differences = second - first
    rng = np.random.default_rng(0)
    p_value = 1.0
    if len(differences) > 1 and np.any(differences):
        p_value = stats.permutation_test(
            (second, first),
            lambda x, y, axis: np.mean(x - y, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=_RESAMPLES,
            batch=500,
            rng=rng,
        ).pvalue
    low, high = None, None
    if len(differences) > 1:
        picks = rng.integers(len(differences), size=(_RESAMPLES, len(differences)))
        tails = [50 * (1 - _LEVEL), 50 * (1 + _LEVEL)]
        low, high = map(float, np.percentile(differences[picks].mean(axis=1), tails))
    return Paired(
        what=what,
        n=len(differences),
        mean_a=float(first.mean()),
        mean_b=float(second.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_value=float(p_value),
        test="paired permutation",
    )


def paired_outcomes(
    a: Sequence[Outcome], b: Sequence[Outcome]
) -> tuple[list[Paired], int]:
    """Compare the outcomes of two policies, task by task.

    A task counts if both have a sample of it that did not fail. Several samples of a
    task are averaged first; with one, successes are compared by McNemar's test. If any
    episode reports success, those that report none count as not solved: a limit of the
    run ended them.

    Args:
        a: A's outcomes, ordered by task.
        b: B's outcomes of the same tasks.

    Returns:
        The tests, of success (if the environment reports it) and of the return; none if
        no task counts. And the number of tasks that do not count.

    Raises:
        ConfigError: The outcomes are not of the same tasks.
    """
    first, second = _by_task(a), _by_task(b)
    if first.keys() != second.keys():
        raise ConfigError(
            f"The outcomes are of {len(first)} and {len(second)} tasks with different "
            "numbers or seeds. Play the same tasks with both policies."
        )
    pairs = [(first[key], second[key]) for key in first]
    pairs = [pair for pair in pairs if all(pair)]
    left_out = len(first) - len(pairs)
    if not pairs:
        return [], left_out
    tests = [paired_means(*_means(pairs, lambda o: o.episode_return), "return")]
    samples = [outcome for pair in pairs for each in pair for outcome in each]
    if any(outcome.success is not None for outcome in samples):
        successes = _means(pairs, lambda o: float(o.success or 0))
        if len(samples) == 2 * len(pairs):
            tests.insert(0, paired_successes(*_as_bool(successes)))
        else:
            tests.insert(0, paired_means(*successes, "success"))
    return tests, left_out


def _by_task(outcomes: Sequence[Outcome]) -> dict[tuple[int, int], list[Outcome]]:
    """Return the samples that did not fail, by the task's number and seed."""
    tasks: dict[tuple[int, int], list[Outcome]] = {}
    for outcome in outcomes:
        played = tasks.setdefault((outcome.task, outcome.seed), [])
        if outcome.failure is None:
            played.append(outcome)
    return tasks


def _means(
    pairs: Sequence[tuple[Sequence[Outcome], Sequence[Outcome]]],
    value: Callable[[Outcome], float | None],
) -> tuple[list[float], list[float]]:
    """Return each task's mean over its samples, of A and of B."""
    a, b = (
        [float(np.mean([value(outcome) for outcome in pair[index]])) for pair in pairs]
        for index in (0, 1)
    )
    return a, b


def _as_bool(values: tuple[list[float], list[float]]) -> tuple[list[bool], list[bool]]:
    a, b = ([bool(value) for value in each] for each in values)
    return a, b
