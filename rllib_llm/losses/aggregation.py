"""Aggregation of token losses: weights per token and a denominator per batch.

``loss = sum(weights * per_token_loss) / denominator``. Both are computed once, when
the batch is built, over *all* rows a learner holds; micro-batches then take slices of
the weights, and denominators are summed over learners. So the gradient does not depend
on how the batch is split, as it would with a mean per micro-batch.

A *sequence* is one episode. It may span several rows (equal ``sequence_ids``); its
length n_s counts the trained tokens of all its rows, and a sequence without any does
not count. All rows of an episode must therefore lie on one learner. With S the
sequences that count:

==========================  ==========  ===========  ==================================
mode                        weight      denominator  known as
==========================  ==========  ===========  ==================================
``token-mean``              1           sum of n_s   DAPO (2503.14476, sec. 3.3); TRL
                                                     ``dapo``, SkyRL ``token_mean``
``seq-mean-token-mean``     1 / n_s     number of S  GRPO (2402.03300, eq. 3); TRL
                                                     ``grpo``, SkyRL ``sequence_mean``
``seq-mean-token-sum``      1           number of S  the policy gradient of the return
``seq-mean-token-sum-norm`` 1/constant  number of S  Dr. GRPO (2503.20783); TRL
                                                     ``dr_grpo``, SkyRL
                                                     ``seq_mean_token_sum_norm``
==========================  ==========  ===========  ==================================

verl's ``loss_agg_mode`` has the same four names; some versions of its last one divide
by the constant only, not by the number of sequences.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rllib_llm.losses._checks import check_choice, check_positive

if TYPE_CHECKING:
    from torch import Tensor

LOSS_AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
)


def token_weights(
    loss_mask: np.ndarray | Tensor,
    sequence_ids: Sequence[Hashable] | np.ndarray,
    mode: str,
    *,
    constant: float | None = None,
) -> np.ndarray:
    """Return the weight of each token's loss.

    Args:
        loss_mask: True where a token is trained; numpy or torch. [B, T]
        sequence_ids: Episode of each row, integers or strings. [B]
        mode: One of the modes in the table of this module.
        constant: For ``seq-mean-token-sum-norm`` only: a length in tokens that is
            constant during training, e.g. the maximum tokens of an episode; > 0.

    Returns:
        Weights in float64, 0 where masked. [B, T]

    Raises:
        ValueError: If shapes do not fit, the mode is unknown, or ``constant`` is
            missing, not positive, or given to a mode without one.
    """
    mask, sequence, lengths = _sequence_lengths(loss_mask, sequence_ids)
    divisor = _checked_constant(mode, constant)
    if mode == "seq-mean-token-mean":
        # 1 / n_s on every row of the sequence, so that a sequence split into several
        # rows still has weight 1 in all. The maximum only guards rows without trained
        # tokens, whose mask is 0.
        per_row = 1.0 / np.maximum(lengths, 1)[sequence]
    else:
        per_row = np.full(len(mask), 1.0 / divisor)
    return mask * per_row[:, None]  # [B, T]


def denominator(
    loss_mask: np.ndarray | Tensor,
    sequence_ids: Sequence[Hashable] | np.ndarray,
    mode: str,
) -> float:
    """Return the divisor of the weighted sum: number of trained tokens or sequences.

    Sum it over learners before dividing. It is 0.0 if nothing is trained;
    :func:`weighted_loss` then gives a loss of 0.0.

    Args:
        loss_mask: As in :func:`token_weights`. [B, T]
        sequence_ids: As in :func:`token_weights`. [B]
        mode: As in :func:`token_weights`. The constant of "seq-mean-token-sum-norm" is
            part of its weights, not of the denominator.

    Returns:
        Number of trained tokens (``token-mean``) or of sequences that have any.

    Raises:
        ValueError: If shapes do not fit or the mode is unknown.
    """
    check_choice("mode", mode, LOSS_AGGREGATIONS)
    mask, _, lengths = _sequence_lengths(loss_mask, sequence_ids)
    # Sequences without trained tokens do not count: a fully masked episode must not
    # make the gradient of the others smaller.
    return float(mask.sum() if mode == "token-mean" else np.count_nonzero(lengths))


def weighted_loss(loss: Tensor, weights: Tensor, denominator: float) -> Tensor:
    """Return ``sum(weights * loss) / denominator``, the number to differentiate.

    Splitting a batch leaves the sum of the parts unchanged as long as all parts
    share one ``denominator``. Under data parallelism that averages gradients over W
    learners, pass the total denominator divided by W.

    Args:
        loss: Loss per token, zero where masked. [B, T]
        weights: From :func:`token_weights`. [B, T]
        denominator: Denominator of the whole batch, from :func:`denominator`; >= 0.

    Returns:
        A scalar; 0.0, still differentiable, if no token of the batch is trained.

    Raises:
        ValueError: If shapes differ or the denominator is negative or not finite.
    """
    if tuple(loss.shape) != tuple(weights.shape):
        raise ValueError(
            f"loss is {list(loss.shape)} but weights is {list(weights.shape)}. They "
            "must have one entry per token each. Slice both to the same rows."
        )
    if not 0 <= denominator < math.inf:
        raise ValueError(
            f"denominator is {denominator}. It must be finite and >= 0. "
            "Sum aggregation.denominator() over all learners."
        )
    # Weights are float64 from numpy; without the cast the whole product would be.
    total = (loss * weights.to(loss.dtype)).sum()
    # Without trained tokens the sum is 0 and keeps its graph: every Learner must call
    # backward, or data parallelism waits for ever.
    return total / denominator if denominator else total


def _sequence_lengths(
    loss_mask: np.ndarray | Tensor, sequence_ids: Sequence[Hashable] | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mask, each row's sequence index, each sequence's trained tokens."""
    mask, ids = _to_numpy(loss_mask), _to_numpy(sequence_ids)
    if mask.dtype != np.bool_:
        raise ValueError(
            f"loss_mask has dtype {mask.dtype}. It must be bool, True where a token is "
            "trained. Pass loss_mask.astype(bool)."
        )
    if mask.ndim != 2 or ids.shape != mask.shape[:1]:
        raise ValueError(
            f"loss_mask is {list(mask.shape)} and sequence_ids is {list(ids.shape)}. "
            "They must be [B, T] and [B]. Pass one episode id per row."
        )
    # Indices 0..S-1 from any ids; np.unique sorts, so the order of rows does not
    # matter.
    _, sequence = np.unique(ids, return_inverse=True)
    lengths = np.bincount(sequence, mask.sum(axis=1)) if len(mask) else np.zeros(0)
    return mask, sequence, lengths


def _to_numpy(array: Sequence[Hashable] | np.ndarray | Tensor) -> np.ndarray:
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def _checked_constant(mode: str, constant: float | None) -> float:
    """Return ``constant`` if the mode uses one, else 1."""
    check_choice("mode", mode, LOSS_AGGREGATIONS)
    if mode != "seq-mean-token-sum-norm":
        if constant is not None:
            raise ValueError(
                f"constant is {constant} with mode {mode!r}. Only "
                "'seq-mean-token-sum-norm' uses it. Omit it."
            )
        return 1.0
    if constant is None:
        raise ValueError(
            "constant is None. Mode 'seq-mean-token-sum-norm' needs a length in "
            "tokens. Pass e.g. the most tokens an episode may sample."
        )
    check_positive("constant", constant, "Pass e.g. the maximum episode tokens.")
    return constant
