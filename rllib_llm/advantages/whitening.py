"""Whitening of advantages, in numpy and float64.

Every standard deviation is the *sample* one (``ddof=1``), as in TRL and verl, which
both call ``torch.std``; it is 0 for fewer than two entries.
"""

from __future__ import annotations

import numpy as np

from rllib_llm.losses._checks import check_finite, check_same_shape


def masked_moments(values: np.ndarray, mask: np.ndarray) -> tuple[int, float, float]:
    """Return count, sum and sum of squares of the unmasked entries.

    All three add up over learners; :func:`whiten_with_moments` takes the totals.

    Args:
        values: Numbers to standardise, e.g. advantages. [...]
        mask: True where an entry counts; other entries are ignored. [...]

    Returns:
        Count, sum, sum of squares; zeros if no entry counts.

    Raises:
        ValueError: If shapes differ or a counted entry is not finite.
    """
    values, mask = _masked_values(values, mask)
    # Sums instead of mean and deviation, because sums of Learners can be added.
    return int(mask.sum()), float(values.sum()), float(np.square(values).sum())


def whiten_with_moments(
    values: np.ndarray,
    mask: np.ndarray,
    moments: tuple[float, float, float],
    *,
    shift_mean: bool = True,
    eps: float = 1e-8,
) -> np.ndarray:
    """Return the entries standardised by moments summed over all learners.

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
    # In float64: the difference of squares below cancels most digits in float32.
    count, total, total_sq = moments
    mean = total / count if count else 0.0
    # Rounding may give a tiny negative number where all entries are equal.
    squares = max(total_sq - count * mean**2, 0.0)
    std = float(np.sqrt(squares / (count - 1))) if count > 1 else 0.0
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

    The statistics are those of the given arrays. Where the batch is split over
    learners, sum :func:`masked_moments` and use :func:`whiten_with_moments`. RLlib's
    connector for GAE divides by ``max(1e-4, std)`` with the population deviation of
    each learner's time steps instead.

    Args:
        values: Entries to standardise; masked ones are ignored. [...]
        mask: True where an entry counts. [...]
        mean: Mean to use; that of the unmasked entries if None.
        std: Standard deviation to use, >= 0; the sample one if None.
        shift_mean: If False, the mean is added back, so only the deviation changes.
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
        std = sample_std(counted)
    # eps is added to the deviation, not to the variance, as in TRL and verl.
    whitened = (values - mean) / (std + eps) + (0.0 if shift_mean else mean)
    return np.where(mask, whitened, 0.0)


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
    # Before the check for finite numbers: masked entries may hold anything.
    values = np.where(mask, values, 0.0)
    check_finite("values (where the mask is True)", values, "Mend their computation.")
    return values, mask


def _mean(values: np.ndarray) -> float:
    """Return the mean, exact where all entries are equal; 0 of none."""
    # The mean of equal floats can differ from them in the last bit; divided by eps,
    # that error would become an advantage.
    return float(values[0] + (values - values[0]).mean()) if values.size else 0.0


def sample_std(values: np.ndarray) -> float:
    """Return the sample standard deviation, 0 of fewer than two values."""
    if values.size < 2:
        return 0.0
    centred = values - _mean(values)
    return float(np.sqrt(np.square(centred).sum() / (values.size - 1)))
