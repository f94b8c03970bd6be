"""Importance weights that correct the train-inference mismatch, in torch.

An engine with other kernels, another dtype or older weights samples from
``pi_behaviour``, while the learner computes ``pi_old`` for the same tokens. The ratio
``w = pi_old / pi_behaviour``, a constant, turns an expectation over the first into one
over the second; it is truncated or masked, since its variance is large. Multiplied into
the advantages (the clipped loss is linear in their scale), it corrects the policy loss
only: tokens of weight 0 still count in the loss's denominator.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from rllib_llm.losses._checks import check_choice, check_mask, check_positive

TIS_LEVELS = ("token", "sequence")


@dataclasses.dataclass(frozen=True)
class MismatchWeights:
    """Weights and diagnostics computed by :func:`mismatch_weights`.

    Attributes:
        weights: Weight of each token, >= 0, 0 where masked, without gradient. [B, T]
        ratio: ``pi_old / pi_behaviour`` per token, 0 where masked. [B, T]
        clipped: Tokens whose weight truncation lowered. bool [B, T]
        dropped: Trained tokens that a band set to 0. bool [B, T]
    """

    weights: Tensor
    ratio: Tensor
    clipped: Tensor
    dropped: Tensor


def mismatch_weights(
    old_logp: Tensor,
    behaviour_logp: Tensor,
    loss_mask: Tensor,
    sequences: Tensor,
    *,
    num_sequences: int | None = None,
    tis: str | None = None,
    tis_clip: float = 2.0,
    token_band: tuple[float | None, float | None] = (None, None),
    sequence_band: tuple[float | None, float | None] = (None, None),
) -> MismatchWeights:
    """Return the weight of each token in the policy loss.

    With ``w_t`` the ratio of token t and the product and mean over the trained tokens
    of its sequence:

    - ``tis="token"``: ``min(w_t, clip)``, truncated importance sampling (Ionides 2008;
      V-trace's rho, eq. (1) of arXiv:1802.01561);
    - ``tis="sequence"``: ``min(prod_t w_t, clip)`` for all its tokens, the same with
      the trajectory's ratio: unbiased below the clip, with a higher variance;
    - ``token_band``: tokens with ``w_t`` outside get weight 0. Together with
      ``tis="token"`` and a clip at the upper bound this is IcePop (Ling Team 2025,
      arXiv:2510.18855: ``w`` inside the band, 0 outside);
    - ``sequence_band``: all tokens of a sequence get 0 where its geometric mean
      ``exp(mean_t log w_t)`` lies outside.

    Args:
        old_logp: Log-probabilities of the learner before the update. [B, T]
        behaviour_logp: Log-probabilities that the engine recorded. [B, T]
        loss_mask: True where the token is trained. [B, T]
        sequences: Sequence of each row, >= 0; rows may share one. [B]
        num_sequences: A number above all of ``sequences``; None reads them, for which
            the host waits if they are on an accelerator.
        tis: "token", "sequence", or None for weights of 1.
        tis_clip: Largest weight, > 0; 2 is usual.
        token_band: Least and largest ratio of a token that is kept; None: no bound.
        sequence_band: Least and largest geometric mean of a sequence that is kept.

    Raises:
        ValueError: If shapes differ or a setting is out of range.
    """
    check_mask(loss_mask, old_logp=old_logp, behaviour_logp=behaviour_logp)
    check_positive("tis_clip", tis_clip, "Use e.g. 2.0.")
    if tis is not None:
        check_choice("tis", tis, TIS_LEVELS)
    # The difference is taken before the mask: masked entries may be NaN or infinite.
    log_ratio = torch.where(loss_mask, old_logp - behaviour_logp, 0.0).detach()
    if num_sequences is None:
        num_sequences = int(sequences.max()) + 1 if len(sequences) else 0
    sums = _per_sequence(log_ratio.sum(1), sequences, num_sequences)  # [B, 1]
    # Trained tokens of the row's sequence; at least 1, since a sequence may have none.
    # [B, 1]
    lengths = loss_mask.sum(1).to(sums.dtype)
    counts = _per_sequence(lengths, sequences, num_sequences).clamp(min=1)
    # [B, T]; zeros, i.e. weights of 1, without truncated importance sampling.
    log_weight = {"token": log_ratio, "sequence": sums.expand_as(log_ratio)}.get(
        str(tis), torch.zeros_like(log_ratio)
    )
    # Truncated in log space: exp of a long sequence's sum would overflow first.
    limit = math.log(tis_clip) if tis else math.inf
    # The bands use the untruncated ratios, so masking and truncation are independent.
    kept = _inside(log_ratio, token_band) & _inside(sums / counts, sequence_band)
    return MismatchWeights(
        weights=log_weight.clamp(max=limit).exp() * (loss_mask & kept),
        ratio=log_ratio.exp() * loss_mask,
        clipped=(log_weight > limit) & loss_mask,
        dropped=loss_mask & ~kept,
    )


def _per_sequence(per_row: Tensor, sequences: Tensor, size: int) -> Tensor:
    """Return the sum over the rows of each sequence, at every row. [B, 1]"""
    total = per_row.new_zeros(size).index_add_(0, sequences, per_row)
    return total[sequences][:, None]


def _inside(log_value: Tensor, band: tuple[float | None, float | None]) -> Tensor:
    low, high = band
    inside = torch.ones_like(log_value, dtype=torch.bool)
    if low is not None:
        inside &= log_value >= math.log(low)
    if high is not None:
        inside &= log_value <= math.log(high)
    return inside
