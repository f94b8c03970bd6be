"""Statistics of success and return with confidence intervals.

A *task* has one or several *samples*. Samples of one task are correlated, so intervals
are cluster-robust with the task as the unit: 100 samples of each of 10 tasks do not
count as 1000 independent samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from rllib_llm.errors import ConfigError

Z95 = 1.959964  # 0.975 quantile of the standard normal distribution
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Mean over tasks with its confidence interval.

    Attributes:
        mean: Mean over tasks of each task's mean over its samples.
        low: Lower end of the 95 % interval; None with one task.
        high: Its upper end; None with one task.
        stderr: Standard error from the spread between tasks; None with one task.
        tasks: Number of tasks with samples.
        samples: Number of their samples.
    """

    mean: float
    low: float | None
    high: float | None
    stderr: float | None
    tasks: int
    samples: int


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a success probability (Wilson 1927).

    Unlike the normal approximation, it stays within [0, 1] and has a positive width at
    0 and 1. Both numbers may be fractional, for effective sample sizes.
    """
    p, z2 = successes / trials, Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    spread = math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    half = Z95 * spread / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of pass@k of one task.

    Eq. 1 of Chen et al. 2021 (arXiv:2107.03374): 1 - C(n - c, k) / C(n, k).

    Args:
        samples: Number of samples (n), at least ``k``.
        solved: Number of samples that solved the task (c).
        k: Number of attempts.

    Raises:
        ConfigError: Unless ``1 <= k <= samples`` and ``0 <= solved <= samples``.
    """
    if not (0 <= solved <= samples and 1 <= k <= samples):
        raise ConfigError(
            f"pass@{k} of {solved} solved among {samples} samples: 1 <= k <= samples "
            "and 0 <= solved <= samples must hold. Draw more samples, or use a smaller "
            "k."
        )
    if samples - solved < k:
        return 1.0
    # As a product: the binomial coefficients overflow for large n.
    # The form of the paper's listing, prod over i in (n - c, n] of (1 - k / i).
    failed = np.arange(samples - solved + 1, samples + 1)
    return float(1.0 - np.prod(1.0 - k / failed))


def mean_of_tasks(values: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of any numbers, with a t interval over task means.

    Args:
        values: For each task the values of its samples; empty tasks are ignored.

    Raises:
        ConfigError: If there are no values.
    """
    means, samples = _task_means(values)
    mean = float(means.mean())
    if len(means) < 2:
        return Estimate(mean, None, None, None, len(means), samples)
    stderr = float(means.std(ddof=1) / math.sqrt(len(means)))
    from scipy import stats

    half = stderr * float(stats.t.ppf(0.5 + _LEVEL / 2, len(means) - 1))
    return Estimate(mean, mean - half, mean + half, stderr, len(means), samples)


def share_of_tasks(values: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of numbers in [0, 1], such as successes, with Wilson's interval.

    The interval uses the effective sample size p (1 - p) / stderr^2, clipped to at
    least the number of tasks (all samples of a task agree) and at most the number of
    samples (they are independent). With one sample per task it is Wilson's interval.

    Args:
        values: For each task the values of its samples; empty tasks are ignored.

    Raises:
        ConfigError: If there are no values, or a task mean lies outside [0, 1].
    """
    means, samples = _task_means(values)
    if means.min() < 0.0 or means.max() > 1.0:
        raise ConfigError(
            f"share_of_tasks() got task means from {means.min()} to {means.max()}; "
            "they must lie in [0, 1]. Use mean_of_tasks() for other numbers."
        )
    p, tasks = float(means.mean()), len(means)
    variance = float(means.var(ddof=1) / tasks) if tasks > 1 else 0.0
    # Without variance between tasks (all 0 or all 1, or one task) the ratio is
    # undefined.
    effective = p * (1 - p) / variance if variance else float(tasks)
    effective = min(max(effective, tasks), samples)
    low, high = wilson_interval(p * effective, effective)
    stderr = math.sqrt(variance) if tasks > 1 else None
    return Estimate(p, low, high, stderr, tasks, samples)


def _task_means(values: Sequence[Sequence[float]]) -> tuple[np.ndarray, int]:
    """Return each task's mean and the number of all values."""
    tasks = [np.asarray(v, np.float64) for v in values if len(v)]
    if not tasks:
        raise ConfigError(
            "The mean of no values is undefined. Play at least one task without a "
            "failure."
        )
    return np.array([v.mean() for v in tasks]), sum(map(len, tasks))
