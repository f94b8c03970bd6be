"""Advantage estimators, in numpy and float64.

They run once per batch, on the driver or while a learner builds its batch, so they
take and return host arrays. Every standard deviation here is the *sample* one
(``ddof=1``), as in the two trainers most results are compared with (TRL and verl
both call ``torch.std``); it is 0 where fewer than two entries exist.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from scipy.signal import lfilter

from rllib_llm.objectives._checks import (
    check_choice,
    check_finite,
    check_same_shape,
    check_vector,
)

BASELINES = ("mean", "leave_one_out", "none")
SCALES = ("none", "group", "batch")


def token_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    *,
    gamma: float | np.ndarray,
    lambda_: float | np.ndarray,
    lambda_critic: float | np.ndarray | None = None,
    bootstrap_value: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return generalised advantage estimates and value targets of one episode.

    Eq. (16) of Schulman et al. 2016 (arXiv:1506.02438), as the recursion
    ``A[i] = d[i] + gamma[i] * lambda_[i] * A[i+1]`` with the one-step error
    ``d[i] = rewards[i] + gamma[i] * values[i+1] - values[i]``. A separate
    ``lambda_critic`` is VC-PPO's decoupled GAE (arXiv:2503.01491).

    The arrays hold the *trained* tokens only, in time order: tokens of the prompt
    and of the environment are left out, so the value after the last token of a turn
    is the one of the first token of the next turn.

    Args:
        rewards: Reward received after each token. [N]
        values: Critic's estimate before each token. [N]
        gamma: Discount in [0, 1]; a scalar, or the one applied to the transition
            after each token. [N]
        lambda_: GAE parameter in [0, 1] for the advantages; like ``gamma``.
        lambda_critic: GAE parameter for the targets; ``lambda_`` if None.
        bootstrap_value: Value of the state after the last token; 0 if the episode
            terminated, the critic's estimate if it was cut short.

    Returns:
        Advantages [N] and value targets [N] (values plus the advantages under
        ``lambda_critic``). Both are empty if N is 0.

    Raises:
        ValueError: If shapes differ, an entry is not finite, or gamma or a lambda
            is outside [0, 1].

    Example:
        >>> token_gae(np.array([0.0, 1.0]), np.zeros(2), gamma=1.0, lambda_=1.0)[0]
        array([1., 1.])
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    check_vector("rewards", rewards)
    check_same_shape(rewards=rewards, values=values)
    check_finite("rewards", rewards, "Mend the environment or the reward function.")
    check_finite("values", values, "The critic diverged; lower its learning rate.")
    after_last = np.array([bootstrap_value], dtype=np.float64)
    check_finite("bootstrap_value", after_last, "Pass 0.0 if the episode terminated.")

    gamma = _per_token("gamma", gamma, len(rewards))
    lambda_ = _per_token("lambda_", lambda_, len(rewards))
    errors = rewards + gamma * np.append(values[1:], after_last) - values
    if not len(rewards):
        return errors, errors.copy()

    advantages = _discounted_sums(errors, gamma * lambda_)
    if lambda_critic is None:
        return advantages, values + advantages
    lambda_critic = _per_token("lambda_critic", lambda_critic, len(rewards))
    return advantages, values + _discounted_sums(errors, gamma * lambda_critic)


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

    Edges: a group of one has nothing to be compared with, so its advantage is 0
    (unless ``baseline="none"``, where it is the return); a group of equal returns
    gives exactly 0 whatever the scale.

    Args:
        returns: Return of each rollout; an episode counts once, however many rows
            it yields. [N]
        group_ids: The group of each rollout, integers or strings. [N]
        baseline: ``"mean"`` subtracts the group's mean; ``"leave_one_out"`` the mean
            of the others, which is G / (G - 1) times as large; ``"none"`` nothing.
        scale: ``"group"`` divides by the standard deviation of the group's returns
            plus ``eps``; ``"batch"`` by the one of all returns plus ``eps``.
        eps: Added to the standard deviation, > 0.

    Returns:
        Advantages, summing to 0 over each group unless ``baseline="none"``. [N]

    Raises:
        ValueError: If shapes differ, a return is not finite, a choice is unknown,
            or a scale is asked for without a baseline.
    """
    check_choice("baseline", baseline, BASELINES)
    check_choice("scale", scale, SCALES)
    if baseline == "none" and scale != "none":
        raise ValueError(
            f"scale is {scale!r} with baseline 'none'. A scale needs a baseline: equal "
            "returns have no spread and would be divided by eps alone. Use "
            "scale='none', or whiten() to standardise over the batch."
        )
    if not eps > 0:
        raise ValueError(f"eps is {eps}. It must be above 0. Use e.g. 1e-6.")
    returns, _, group, counts = _grouped(returns, group_ids)
    if baseline == "none" or not len(returns):
        return returns.copy()

    centred = _centre(returns, group, counts)
    scaled = centred
    if baseline == "leave_one_out":
        scaled = centred * (counts / np.maximum(counts - 1, 1))[group]
    if scale == "group":
        scaled = scaled / (_group_std(centred, group, counts)[group] + eps)
    elif scale == "batch":
        scaled = scaled / (_sample_std(returns) + eps)
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
    """Return the groups whose returns are all alike, hence teach nothing.

    These are what DAPO's dynamic sampling replaces (arXiv:2503.14476, sec. 3.2). A
    group of one is among them: its advantage is 0 as well.

    Args:
        returns: Return of each rollout. [N]
        group_ids: The group of each rollout, integers or strings. [N]
        tolerance: Largest standard deviation that still counts as none, >= 0.

    Returns:
        Ids of the groups to drop or to sample anew.

    Raises:
        ValueError: If shapes differ, a return is not finite, or the tolerance is
            negative.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}. It must be >= 0. Use e.g. 1e-6.")
    stds = group_reward_std(returns, group_ids)
    return {group for group, std in stds.items() if std <= tolerance}


def masked_moments(values: np.ndarray, mask: np.ndarray) -> tuple[int, float, float]:
    """Return count, sum and sum of squares of the unmasked entries.

    The three add up over learners; :func:`whiten_with_moments` takes the totals.

    Args:
        values: Anything to be standardised, e.g. advantages. [...]
        mask: True where an entry counts; others may hold anything. [...]

    Returns:
        Count, sum, sum of squares; zeros if nothing counts.

    Raises:
        ValueError: If shapes differ or a counted entry is not finite.
    """
    values, mask = _masked_values(values, mask)
    return int(mask.sum()), float(values.sum()), float(np.square(values).sum())


def whiten_with_moments(
    values: np.ndarray,
    mask: np.ndarray,
    moments: tuple[float, float, float],
    *,
    shift_mean: bool = True,
    eps: float = 1e-8,
) -> np.ndarray:
    """Standardise by moments that were summed over all learners.

    Args:
        values: Entries to standardise. [...]
        mask: True where an entry counts. [...]
        moments: Totals of :func:`masked_moments` over every part of the batch.
        shift_mean: See :func:`whiten`.
        eps: See :func:`whiten`.

    Returns:
        Standardised entries, 0 where masked. [...]

    Raises:
        ValueError: See :func:`whiten`.
    """
    count, total, total_sq = moments
    mean = total / count if count else 0.0
    # Rounding may leave a tiny negative number where all entries are equal.
    spread = max(total_sq - count * mean**2, 0.0)
    std = float(np.sqrt(spread / (count - 1))) if count > 1 else 0.0
    return whiten(values, mask, mean=mean, std=std, shift_mean=shift_mean, eps=eps)


def whiten(
    values: np.ndarray,
    mask: np.ndarray,
    *,
    mean: float | None = None,
    std: float | None = None,
    shift_mean: bool = True,
    eps: float = 1e-8,
) -> np.ndarray:
    """Return ``(values - mean) / (std + eps)`` over the unmasked entries.

    The statistics are those of the arrays given. Where the batch is split over
    learners, sum :func:`masked_moments` and use :func:`whiten_with_moments`. RLlib's
    connector for GAE divides by ``max(1e-4, std)`` with the population deviation of
    each learner's time steps instead.

    Args:
        values: Entries to standardise; masked ones may hold anything. [...]
        mask: True where an entry counts. [...]
        mean: The mean to use; that of the unmasked entries if None.
        std: The standard deviation to use, >= 0; the sample one if None.
        shift_mean: If False, the mean is added back, so only the spread changes.
        eps: Added to the standard deviation, > 0.

    Returns:
        Standardised entries, 0 where masked; equal entries, or a single one, give
        0 (their mean if ``shift_mean`` is False). [...]

    Raises:
        ValueError: If shapes differ, a counted entry is not finite, or ``std`` or
            ``eps`` is out of range.
    """
    if not eps > 0:
        raise ValueError(f"eps is {eps}. It must be above 0. Use e.g. 1e-8.")
    if std is not None and not std >= 0:
        raise ValueError(f"std is {std}. It must be >= 0. Pass None to compute it.")
    values, mask = _masked_values(values, mask)
    counted = values[mask]
    if mean is None:
        mean = _mean(counted)
    if std is None:
        std = _sample_std(counted)
    whitened = (values - mean) / (std + eps) + (0.0 if shift_mean else mean)
    return np.where(mask, whitened, 0.0)


def _per_token(name: str, value: float | np.ndarray, count: int) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), (count,)):
        raise ValueError(
            f"{name} has shape {list(array.shape)}. It must be a scalar or [{count}], "
            "one entry per trained token. Leave out the tokens that are not trained."
        )
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"{name} is {value}. It must lie in [0, 1]. Use e.g. 1.0 for tokens."
        )
    return np.broadcast_to(array, (count,))


def _discounted_sums(terms: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Solve ``s[i] = terms[i] + decay[i] * s[i+1]`` with ``s[N] = 0``."""
    if np.all(decay == decay[0]):
        return lfilter([1.0], [1.0, -decay[0]], terms[::-1])[::-1]
    sums = np.empty_like(terms)
    following = 0.0
    for i in range(len(terms) - 1, -1, -1):
        following = terms[i] + decay[i] * following
        sums[i] = following
    return sums


def _grouped(
    returns: np.ndarray, group_ids: Sequence[Hashable] | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return returns, distinct ids, group index of each return, group sizes."""
    returns = np.asarray(returns, dtype=np.float64)
    group_ids = np.asarray(group_ids)
    check_vector("returns", returns)
    check_same_shape(returns=returns, group_ids=group_ids)
    check_finite("returns", returns, "Drop the failed episodes before this step.")
    ids, group = np.unique(group_ids, return_inverse=True)
    return returns, ids, group, np.bincount(group, minlength=len(ids))


def _centre(returns: np.ndarray, group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Subtract each group's mean; exactly 0 where all of a group are equal."""
    # Measured from one member, equal returns differ by 0 and the mean has no rounding.
    anchors = np.empty(len(counts))
    anchors[group] = returns
    shifted = returns - anchors[group]
    return shifted - (np.bincount(group, shifted, len(counts)) / counts)[group]


def _group_std(
    centred: np.ndarray, group: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    sum_sq = np.bincount(group, centred**2, len(counts))
    return np.sqrt(sum_sq / np.maximum(counts - 1, 1))


def _mean(values: np.ndarray) -> float:
    """Return the mean, without rounding where all entries are equal; 0 of none."""
    return float(values[0] + (values - values[0]).mean()) if values.size else 0.0


def _sample_std(values: np.ndarray) -> float:
    if values.size < 2:
        return 0.0
    centred = values - _mean(values)
    return float(np.sqrt(np.square(centred).sum() / (values.size - 1)))


def _masked_values(
    values: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 values with zeros where masked, and a checked mask."""
    values = np.asarray(values, dtype=np.float64)
    mask = np.asarray(mask)
    check_same_shape(values=values, mask=mask)
    if mask.dtype != np.bool_:
        raise ValueError(
            f"mask has dtype {mask.dtype}. It must be bool, True where an entry "
            "counts. Pass mask.astype(bool)."
        )
    values = np.where(mask, values, 0.0)
    check_finite("values (where the mask is True)", values, "Mend what computed it.")
    return values, mask
