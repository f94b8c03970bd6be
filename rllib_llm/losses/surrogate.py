"""Per-token losses as pure torch functions.

Each function returns a loss of the shape of its inputs that is exactly 0 where masked,
in value and in gradient, even if the masked entries are NaN or infinite: they are
replaced before anything is computed from them.
:func:`rllib_llm.losses.aggregation.weighted_loss` sums over tokens and divides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rllib_llm.losses._checks import (
    check_choice,
    check_mask,
    check_positive,
    check_same_shape,
)

CLIP_FORMS = ("hard", "soft")

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this magnitude (nats), so that exp stays finite."""


def clipped_policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped surrogate per token, to be minimised.

    Eq. (7) of Schulman et al. 2017 (arXiv:1707.06347), negated; ``clip_high`` above
    ``clip_low`` is DAPO's clip-higher (arXiv:2503.14476, sec. 3.1); ``dual_clip`` is
    the lower bound ``dual_clip * A`` on the objective where A < 0 (Ye et al. 2020,
    arXiv:1912.09729, "dual-clip PPO").

    Args:
        logp: Log-probabilities under the current policy, in nats. [B, T]
        old_logp: The same tokens under the policy before this update. [B, T]
        advantages: Advantage of each token; broadcasting is refused. [B, T]
        loss_mask: True where the token is trained. [B, T]
        clip_low: The ratio is clipped below at ``1 - clip_low``, in (0, 1].
        clip_high: The ratio is clipped above at ``1 + clip_high``, > 0.
        dual_clip: Bound on the ratio where the advantage is negative, > 1, e.g. 3;
            None for plain PPO.

    Returns:
        Loss, zero where masked, and the trained tokens whose gradient a clip removed
        (bool). 2 x [B, T]

    Raises:
        ValueError: If shapes differ or a clip range is out of range.
    """
    check_mask(loss_mask, logp=logp, old_logp=old_logp, advantages=advantages)
    return clipped_surrogate(
        _masked_log_ratio(logp, old_logp, loss_mask).exp(),
        _keep(advantages, loss_mask).detach(),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


def clipped_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    form: str = "hard",
) -> tuple[Tensor, Tensor]:
    """Return the clipped surrogate of ratios of tokens, turns or sequences.

    All policy losses clip their ratios here: tokens (:func:`clipped_policy_loss`),
    turns and sequences (the policy loss ``gspo``).

    Args:
        ratio: New over old probability, finite and above 0. [B, T]
        advantages: Constant; 0 where nothing is trained. [B, T]
        clip_low: See :func:`clipped_policy_loss`.
        clip_high: See :func:`clipped_policy_loss`.
        dual_clip: See :func:`clipped_policy_loss`.
        form: "hard", or "soft": above the upper bound the value is the same, but the
            gradient ``(1 + clip_high) * A * grad log ratio`` stays (AEPO,
            arXiv:2510.14545).

    Returns:
        Loss [B, T], and the places where a bound replaced the ratio, including
        ``dual_clip`` (bool [B, T]).

    Raises:
        ValueError: If shapes differ, or a range or the form is not as above.
    """
    check_same_shape(ratio=ratio, advantages=advantages)
    _check_clips(clip_low, clip_high, dual_clip)
    check_choice("form", form, CLIP_FORMS)
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    if form == "soft":
        # The quotient is 1 in value, but keeps the gradient of the ratio.
        kept = (1.0 + clip_high) * ratio / ratio.detach()
        bounded = torch.where(ratio > 1.0 + clip_high, kept, bounded)
    # The minimum makes the objective a lower bound: the clip acts only if the ratio has
    # moved in the direction of the advantage (PPO, eq. 7).
    objective = torch.minimum(ratio * advantages, bounded * advantages)
    clipped = is_clipped(ratio, advantages, clip_low=clip_low, clip_high=clip_high)
    if dual_clip is not None:
        negative = advantages < 0
        # For A < 0 the minimum has no lower bound in the ratio: a token that became far
        # more likely would dominate the gradient. Dual-clip PPO bounds it.
        floor = torch.maximum(objective, dual_clip * advantages)
        objective = torch.where(negative, floor, objective)
        clipped = clipped | (negative & (ratio > dual_clip))
    return -objective, clipped


def is_clipped(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """Return the places where the ratio left its range in the update's direction.

    Args:
        ratio: New over old probability. [B, T]
        advantages: Their sign is the direction. [B, T]
        clip_low: The range begins at ``1 - clip_low``.
        clip_high: The range ends at ``1 + clip_high``.

    Returns:
        bool [B, T]
    """
    above, below = ratio > 1.0 + clip_high, ratio < 1.0 - clip_low
    return ((advantages > 0) & above) | ((advantages < 0) & below)


def negative_log_likelihood(
    logp: Tensor, loss_mask: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return ``-weights * logp`` per token: supervised or filtered imitation.

    With advantages as weights this is REINFORCE without a ratio.

    Args:
        logp: Log-probabilities under the current policy, in nats. [B, T]
        loss_mask: True where the token is trained. [B, T]
        weights: Weight of each token, constant; 1 if None. [B, T]

    Returns:
        Loss, zero where masked. [B, T]

    Raises:
        ValueError: If shapes differ.
    """
    check_mask(loss_mask, logp=logp)
    loss = -_keep(logp, loss_mask)
    if weights is None:
        return loss
    check_mask(loss_mask, weights=weights)
    return loss * _keep(weights, loss_mask).detach()


def entropy_bonus(entropy: Tensor, loss_mask: Tensor) -> Tensor:
    """Return minus the entropy per token, a loss whose descent raises entropy.

    Sec. 5, eq. (9) of Schulman et al. 2017 (arXiv:1707.06347): add it to the loss
    times ``entropy_coeff``.

    Args:
        entropy: Entropy of the policy at each token, in nats. [B, T]
        loss_mask: True where the token is trained. [B, T]

    Returns:
        Loss, zero where masked. [B, T]

    Raises:
        ValueError: If shapes differ.
    """
    check_mask(loss_mask, entropy=entropy)
    return -_keep(entropy, loss_mask)


def _keep(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the tensor with masked entries 0, which also blocks their gradient."""
    return tensor.masked_fill(~mask, 0.0)


def _masked_log_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    log_ratio = _keep(logp, mask) - _keep(old_logp, mask).detach()
    # An infinite ratio would turn the zero gradient of a clipped token into NaN.
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _check_clips(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    if not 0 < clip_low <= 1:
        raise ValueError(
            f"clip_low is {clip_low}. It must lie in (0, 1], since a ratio is never "
            "negative. Use e.g. 0.2."
        )
    check_positive("clip_high", clip_high, "Use e.g. 0.2, or 0.28 for clip-higher.")
    if dual_clip is not None and not 1 < dual_clip < math.inf:
        raise ValueError(
            f"dual_clip is {dual_clip}. It must be above 1. Use e.g. 3.0, or None."
        )
