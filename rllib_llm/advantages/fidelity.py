"""Quality of advantage estimates: rank correlation with exact ones, gradient norms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from rllib_llm.losses._checks import check_finite, check_same_shape, check_vector


def rank_correlation(estimates: np.ndarray, exact: np.ndarray) -> float:
    """Return Spearman's rank correlation of estimated and exact advantages.

    The credit assignment fidelity of C3 (arXiv:2603.06859): whether an estimator orders
    messages correctly, at any scale. Ties share their mean rank. Numbers that differ by
    less than 1e-9 of the largest magnitude are ties: estimators sum in different
    orders, and rounding must not decide ranks.

    Args:
        estimates: Advantages of an estimator. [M]
        exact: The exact advantages of the same messages. [M]

    Returns:
        In [-1, 1]; NaN if either is constant (nothing to rank) or M < 2.

    Raises:
        ValueError: If shapes differ or an entry is not finite.
    """
    columns = {"estimates": estimates, "exact": exact}
    columns = {k: np.asarray(v, dtype=np.float64) for k, v in columns.items()}
    check_same_shape(**columns)
    for name, column in columns.items():
        check_vector(name, column)
        check_finite(name, column, "Omit messages without an advantage.")
        scale = np.abs(column).max(initial=0.0) or 1.0
        # Relative to the largest, so that the tolerance does not depend on the units.
        columns[name] = np.round(column / scale, 9)
        if len(column) < 2 or np.ptp(columns[name]) == 0:
            return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(*columns.values()).statistic)


@dataclasses.dataclass(frozen=True)
class GradientNorms:
    """Summary of a run's gradient norms.

    Attributes:
        median: Median of the norms.
        largest: Largest of the norms.
        spike: ``largest / median``; NaN if all norms are 0, infinite if most are 0.
    """

    median: float
    largest: float
    spike: float


def summarise_gradient_norms(norms: np.ndarray) -> GradientNorms:
    """Return median and largest gradient norm of a run, and their ratio.

    The stability measure of Dr. MAS (arXiv:2602.08847): if agents with different
    rewards share one normalisation, some updates are many times larger than usual.

    Args:
        norms: Norm of each update's gradient before clipping, >= 0. [U]

    Raises:
        ValueError: If there are none, or one is negative or not finite.
    """
    norms = np.asarray(norms, dtype=np.float64)
    check_vector("norms", norms)
    check_finite("norms", norms, "Omit skipped updates.")
    if not norms.size or norms.min() < 0:
        raise ValueError(
            f"norms has {norms.size} entries, the least {norms.min(initial=math.inf)}. "
            "There must be at least one, none negative. Pass the logged grad_norm."
        )
    # The median and not the mean, which the spikes themselves would raise.
    median, largest = float(np.median(norms)), float(norms.max())
    if median > 0:
        return GradientNorms(median, largest, largest / median)
    return GradientNorms(median, largest, math.inf if largest > 0 else math.nan)
