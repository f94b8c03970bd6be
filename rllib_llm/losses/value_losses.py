"""Losses of a critic per token, in torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rllib_llm.losses._checks import check_choice, check_mask, check_positive

VALUE_LOSSES = ("squared", "huber", "bce")


def critic_loss(
    values: Tensor,
    targets: Tensor,
    loss_mask: Tensor,
    *,
    kind: str = "squared",
    huber_delta: float = 1.0,
    largest: float | None = None,
    clip_range: float | None = None,
    old_values: Tensor | None = None,
) -> Tensor:
    """Return the loss of each prediction, 0 where masked.

    - "squared": ``(V - target)**2``;
    - "huber": the same up to an error of ``huber_delta``, linear beyond;
    - "bce": ``values`` are logits of a probability of success, the loss is the
      cross-entropy to targets in [0, 1] (DigiRL, arXiv:2406.11896).

    With ``largest``, the loss is capped as by RLlib's ``vf_clip_param``: tokens above
    the cap get no gradient, so keep it above the squared scale of the returns.
    With ``clip_range``, it is the larger of that loss and the loss of the prediction
    limited to ``clip_range`` from its old value: the value clip of PPO2.

    Args:
        values: Predictions of the critic; logits for "bce". [B, T]
        targets: Regression targets of the predictions; constant. [B, T]
        loss_mask: True where a value is trained. [B, T]
        kind: One of ``VALUE_LOSSES``.
        huber_delta: Error beyond which "huber" is linear, > 0.
        largest: Cap on the loss of a token, > 0; None or inf for none. Not with "bce".
        clip_range: Largest change of a prediction, > 0; None for none. Not with "bce".
        old_values: Predictions before the update; needed with ``clip_range``. [B, T]

    Raises:
        ValueError: If shapes differ, a choice is unknown, a number is out of range, or
            a target of "bce" is not a probability.
    """
    check_mask(loss_mask, values=values, targets=targets)
    check_choice("kind", kind, VALUE_LOSSES)
    check_positive("huber_delta", huber_delta, "Use e.g. 1.0.")
    # Masked before the error: padding may hold NaN, and 0 * NaN is NaN.
    values = values.masked_fill(~loss_mask, 0.0)
    targets = targets.masked_fill(~loss_mask, 0.0).detach()
    if kind == "bce":
        loss = _cross_entropy(values, targets)
        return loss.masked_fill(~loss_mask, 0.0)
    loss = _distance(values - targets, kind, huber_delta)
    if clip_range is not None:
        limited = _limited(values, old_values, loss_mask, clip_range)
        # The larger of both, as in PPO2: the clip never makes a prediction look better.
        loss = torch.maximum(loss, _distance(limited - targets, kind, huber_delta))
    elif old_values is not None:
        raise ValueError(
            "old_values is given but clip_range is None. Clipping needs both. Set "
            "clip_range, e.g. 0.2, or leave out old_values."
        )
    if largest is None or largest == math.inf:
        return loss
    check_positive("largest", largest, "Use e.g. 10.0, or None.")
    # clamp has no gradient above the cap, as in RLlib's PPO, which caps the squared
    # error with vf_clip_param.
    return loss.clamp(max=largest)


def _limited(
    values: Tensor, old_values: Tensor | None, loss_mask: Tensor, clip_range: float
) -> Tensor:
    """Return the predictions, at most ``clip_range`` from their old values."""
    check_positive("clip_range", clip_range, "Use e.g. 0.2, or None.")
    if old_values is None:
        raise ValueError(
            f"clip_range is {clip_range}, but old_values is None. Clipping needs the "
            "predictions before the update. Pass them, or clip_range=None."
        )
    check_mask(loss_mask, old_values=old_values)
    old_values = old_values.masked_fill(~loss_mask, 0.0).detach()
    return old_values + (values - old_values).clamp(-clip_range, clip_range)


def _distance(error: Tensor, kind: str, delta: float) -> Tensor:
    if kind == "squared":
        return error.square()
    size = error.abs()  # 2 delta |e| - delta^2 meets e^2 at delta
    return torch.where(size <= delta, error.square(), delta * (2 * size - delta))


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    # A small tolerance: targets of GAE are sums of float32 values. NaN fails, too.
    if targets.numel() and not ((targets - 0.5).abs().max() <= 0.5 + 1e-4):
        raise ValueError(
            f"Value targets span [{float(targets.min()):.3g}, "
            f"{float(targets.max()):.3g}], but value_loss 'bce' estimates the "
            "probability of success. Keep returns in [0, 1], or use another loss."
        )
    return torch.nn.functional.binary_cross_entropy_with_logits(
        logits, targets.clamp(0.0, 1.0), reduction="none"
    )
