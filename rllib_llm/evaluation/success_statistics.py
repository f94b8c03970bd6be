"""What outcomes say about a policy, with intervals: pure functions of numbers.

A *task* is played once or several times (*samples*). Samples of one task resemble each
other, so intervals treat the task as the unit (cluster-robust): a hundred samples of
ten tasks do not pretend to be a thousand independent ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from rllib_llm.errors import ConfigError

_Z95 = 1.959964
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over tasks and how sure it is.

    Attributes:
        mean: Mean over tasks of each task's mean over its samples.
        low: Lower end of the 95 % interval; None where one task tells no spread.
        high: Its upper end.
        stderr: Standard error, from the spread between tasks; None like ``low``.
        tasks: Tasks that count.
        samples: Their samples.
    """

    mean: float
    low: float | None
    high: float | None
    stderr: float | None
    tasks: int
    samples: int


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a success probability (Wilson 1927).

    Unlike the normal approximation it stays within [0, 1] and has a width at 0 and 1.
    Both numbers may be fractions: effective ones of a clustered sample.
    """
    p, z2 = successes / trials, _Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    spread = math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    half = _Z95 * spread / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Estimate the chance that one of ``k`` samples of a task solves it, unbiased.

    Eq. 1 of Chen et al. 2021 (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k).

    Args:
        samples: Samples drawn (n), at least ``k``.
        solved: Those that solved the task (c).
        k: How many tries count.

    Raises:
        ConfigError: If the numbers do not fit.
    """
    if not (0 <= solved <= samples and 1 <= k <= samples):
        raise ConfigError(
            f"pass@{k} of {solved} solved among {samples} samples: 1 <= k <= samples "
            "and 0 <= solved <= samples must hold. Draw more samples, or ask for a "
            "smaller k."
        )
    if samples - solved < k:
        return 1.0
    failed = np.arange(samples - solved + 1, samples + 1)
    return float(1.0 - np.prod(1.0 - k / failed))


def mean_of_tasks(values: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of any numbers, with a t interval over task means.

    Args:
        values: Of each task, those of its samples; tasks without any do not count.

    Raises:
        ConfigError: If there is no value at all.
    """
    means, samples = _task_means(values)
    mean = float(means.mean())
    if len(means) < 2:
        return Estimate(mean, None, None, None, len(means), samples)
    stderr = float(means.std(ddof=1) / math.sqrt(len(means)))
    half = stderr * float(stats.t.ppf(0.5 + _LEVEL / 2, len(means) - 1))
    return Estimate(mean, mean - half, mean + half, stderr, len(means), samples)


def share_of_tasks(values: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of numbers in [0, 1], such as successes, with Wilson's interval.

    The interval is that of the effective sample size p (1 - p) / stderr^2, held
    between the number of tasks (samples of a task always agree) and that of samples
    (they are independent). With one sample per task it is the usual one.

    Args:
        values: Of each task, those of its samples; tasks without any do not count.

    Raises:
        ConfigError: If there is no value at all, or one outside of [0, 1].
    """
    means, samples = _task_means(values)
    if means.min() < 0.0 or means.max() > 1.0:
        raise ConfigError(
            f"Shares must lie in [0, 1]; got task means from {means.min()} to "
            f"{means.max()}. Use mean_of_tasks for other numbers."
        )
    p, tasks = float(means.mean()), len(means)
    variance = float(means.var(ddof=1) / tasks) if tasks > 1 else 0.0
    effective = p * (1 - p) / variance if variance else float(tasks)
    effective = min(max(effective, tasks), samples)
    low, high = wilson_interval(p * effective, effective)
    stderr = math.sqrt(variance) if tasks > 1 else None
    return Estimate(p, low, high, stderr, tasks, samples)


def _task_means(values: Sequence[Sequence[float]]) -> tuple[np.ndarray, int]:
    """Return each task's mean and the number of all values."""
    known = [np.asarray(v, np.float64) for v in values if len(v)]
    if not known:
        raise ConfigError("There is no value to estimate a mean from; play some tasks.")
    return np.array([v.mean() for v in known]), sum(map(len, known))
