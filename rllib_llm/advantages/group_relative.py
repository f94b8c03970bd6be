"""Advantages relative to a group of rollouts, in numpy and float64.

They run once per batch, on the driver or while a learner builds its batch, so they
take and return host arrays. Every standard deviation here is the *sample* one
(``ddof=1``), as in TRL and verl, which both call ``torch.std``; it is 0 for fewer than
two entries.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.whitening import sample_std
from rllib_llm.losses._checks import (
    check_choice,
    check_finite,
    check_same_shape,
    check_vector,
)

BASELINES = ("mean", "leave_one_out", "none")
SCALES = ("none", "group", "batch")


def group_advantages(
    returns: np.ndarray,
    group_ids: Sequence[Hashable] | np.ndarray,
    *,
    baseline: str = "mean",
    scale: str = "none",
    eps: float = 1e-6,
) -> np.ndarray:
    """Return each rollout's return relative to its group.

    ====================  ===========  ====================================
    baseline              scale        paper
    ====================  ===========  ====================================
    ``mean``              ``group``    GRPO (arXiv:2402.03300, sec. 4.1.2)
    ``mean``              ``none``     Dr. GRPO (arXiv:2503.20783, sec. 3.2)
    ``mean``              ``batch``    Lite PPO (arXiv:2508.08221)
    ``leave_one_out``     ``none``     RLOO (arXiv:2402.14740)
    ``none``              ``none``     REINFORCE without a baseline
    ====================  ===========  ====================================

    A group of one has no comparison, so its advantage is 0 (with ``baseline="none"``
    it is the return). A group of equal returns gives exactly 0 at every scale.

    Args:
        returns: Return of each rollout; an episode counts once, however many rows
            it has. [N]
        group_ids: The group of each rollout, integers or strings. [N]
        baseline: ``"mean"`` subtracts the group's mean; ``"leave_one_out"`` the mean
            of the others, whose result is G / (G - 1) times as large; ``"none"`` none.
        scale: ``"group"`` divides by the standard deviation of the group's returns
            plus ``eps``; ``"batch"`` by the one of all returns plus ``eps``.
        eps: Added to the standard deviation, > 0.

    Returns:
        Advantages, summing to 0 over each group unless ``baseline="none"``. [N]

    Raises:
        ValueError: If shapes differ, a return is not finite, a choice is unknown,
            or a scale is set without a baseline.
    """
    check_choice("baseline", baseline, BASELINES)
    check_choice("scale", scale, SCALES)
    if baseline == "none" and scale != "none":
        raise ValueError(
            f"scale is {scale!r} with baseline 'none'. A scale needs a baseline: equal "
            "returns have no deviation, so eps alone would divide them. Use "
            "scale='none', or whiten() to standardise over the batch."
        )
    if not eps > 0:
        raise ValueError(f"eps is {eps}. It must be above 0. Use e.g. 1e-6.")
    returns, _, group, counts = _grouped(returns, group_ids)
    # A copy: the array may be the caller's own.
    if baseline == "none" or not len(returns):
        return returns.copy()

    centred = _centre(returns, group, counts)  # [N]
    scaled = centred
    if baseline == "leave_one_out":
        # R - mean of the others = (R - mean) * G / (G - 1), without a loop over
        # members.
        scaled = centred * (counts / np.maximum(counts - 1, 1))[group]
    if scale == "group":
        scaled = scaled / (_group_std(centred, group, counts)[group] + eps)
    elif scale == "batch":
        # The deviation of returns, not of centred returns, as in Lite PPO.
        scaled = scaled / (sample_std(returns) + eps)
    return scaled


def group_reward_std(
    returns: np.ndarray, group_ids: Sequence[Hashable] | np.ndarray
) -> dict[Hashable, float]:
    """Return the sample standard deviation of each group's returns.

    Args:
        returns: Return of each rollout. [N]
        group_ids: The group of each rollout, integers or strings. [N]

    Returns:
        Group id to standard deviation; 0.0 for a group of one.

    Raises:
        ValueError: If shapes differ or a return is not finite.
    """
    returns, ids, group, counts = _grouped(returns, group_ids)
    stds = _group_std(_centre(returns, group, counts), group, counts)
    return dict(zip(ids.tolist(), stds.tolist(), strict=True))


def zero_variance_groups(
    returns: np.ndarray,
    group_ids: Sequence[Hashable] | np.ndarray,
    *,
    tolerance: float = 1e-6,
) -> set[Hashable]:
    """Return the groups whose returns are all equal, so that nothing is learned.

    DAPO's dynamic sampling replaces them (arXiv:2503.14476, sec. 3.2). A group of one
    is among them: its advantage is 0 as well.

    Args:
        returns: Return of each rollout. [N]
        group_ids: The group of each rollout, integers or strings. [N]
        tolerance: Largest standard deviation that counts as 0, >= 0.

    Returns:
        Ids of the groups to drop or to sample anew.

    Raises:
        ValueError: If shapes differ, a return is not finite, or the tolerance is
            negative.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}. It must be >= 0. Use e.g. 1e-6.")
    stds = group_reward_std(returns, group_ids)
    # A tolerance instead of 0: rewards that are sums of floats differ in the last bits.
    return {group for group, std in stds.items() if std <= tolerance}


def _grouped(
    returns: np.ndarray, group_ids: Sequence[Hashable] | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the returns, the distinct ids, each return's group, the group sizes."""
    returns = np.asarray(returns, dtype=np.float64)
    group_ids = np.asarray(group_ids)
    check_vector("returns", returns)
    check_same_shape(returns=returns, group_ids=group_ids)
    check_finite("returns", returns, "Drop the failed episodes before this step.")
    ids, group = np.unique(group_ids, return_inverse=True)
    return returns, ids, group, np.bincount(group, minlength=len(ids))


def _centre(returns: np.ndarray, group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the returns minus their group's mean; exactly 0 where all are equal."""
    # Measured from one member, equal returns differ by 0 and their mean is exact.
    anchors = np.empty(len(counts))
    anchors[group] = returns
    shifted = returns - anchors[group]
    return shifted - (np.bincount(group, shifted, len(counts)) / counts)[group]


def _group_std(
    centred: np.ndarray, group: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    sum_sq = np.bincount(group, centred**2, len(counts))
    # Sample deviation; a group of one has the sum 0 and so the deviation 0.
    return np.sqrt(sum_sq / np.maximum(counts - 1, 1))
