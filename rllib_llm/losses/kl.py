"""Estimators of KL(pi || pi_ref) from the sampled token, in torch.

Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx.html). With
``d = ref_logp - logp`` and tokens sampled from pi:

======  ===============  ====================  =====================================
name    value            mean under pi         mean gradient under pi
======  ===============  ====================  =====================================
``k1``  -d               KL                    0: only for rewards, not as a loss
``k2``  d**2 / 2         KL to second order    gradient of KL(pi || pi_ref)
``k3``  exp(d) - d - 1   KL, never negative    gradient of KL(pi_ref || pi)
======  ===============  ====================  =====================================

The last column is for a loss differentiated through ``logp`` of fresh samples; see
Tang and Munos 2025 (arXiv:2506.09477). ``k3`` is the term in eq. (4) of GRPO
(arXiv:2402.03300).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllib_llm.losses._checks import (
    check_choice,
    check_mask,
    check_positive,
    check_same_shape,
)

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Return ``logp - ref_logp`` per token: unbiased, of either sign, high variance.

    Args:
        logp: Log-probabilities under the sampling policy, in nats. [...]
        ref_logp: The same tokens under the reference policy. [...]

    Returns:
        Estimate in nats per token. [...]

    Raises:
        ValueError: If shapes differ.
    """
    check_same_shape(logp=logp, ref_logp=ref_logp)
    return logp - ref_logp


def kl_k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Return ``(logp - ref_logp)**2 / 2`` per token: never negative, biased.

    Args:
        logp: Log-probabilities under the sampling policy, in nats. [...]
        ref_logp: The same tokens under the reference policy. [...]

    Returns:
        Estimate in nats per token; its bias is of third order in the log-ratio.

    Raises:
        ValueError: If shapes differ.
    """
    return 0.5 * kl_k1(logp, ref_logp).square()


def kl_k3(
    logp: Tensor,
    ref_logp: Tensor,
    *,
    clamp: float | None = 20.0,
    largest: float | None = None,
) -> Tensor:
    """Return ``exp(d) - d - 1``, d = ref_logp - logp: unbiased, never negative.

    It grows with ``exp(d)``: a token that is 20 nats likelier under the reference
    counts 4.9e8 unless ``largest`` bounds it.

    Args:
        logp: Log-probabilities under the sampling policy, in nats. [...]
        ref_logp: The same tokens under the reference policy. [...]
        clamp: Bound on the magnitude of d, so that one token that became nearly
            impossible does not overflow; beyond it the gradient is 0. None for none.
        largest: Bound on the estimate, > 0; a token at it has no gradient. It biases
            the estimate downwards. None for none.

    Returns:
        Estimate in nats per token. [...]

    Raises:
        ValueError: If shapes differ, or ``clamp`` or ``largest`` is not positive.
    """
    d = -kl_k1(logp, ref_logp)
    if clamp is not None:
        check_positive("clamp", clamp, "Use e.g. 20.0, or None for no clamp.")
        # exp overflows float32 at 88 nats, and one infinite token would make the loss
        # NaN.
        d = d.clamp(-clamp, clamp)
    # expm1: exp(d) - 1 would lose all digits of the small d that are usual.
    estimate = torch.expm1(d) - d
    if largest is None:
        return estimate
    check_positive("largest", largest, "Use e.g. 10.0, or None for no bound.")
    return estimate.clamp(max=largest)


def kl_penalty(
    logp: Tensor,
    ref_logp: Tensor,
    loss_mask: Tensor,
    estimator: str = "k3",
    *,
    clamp: float | None = 20.0,
    largest: float | None = None,
) -> Tensor:
    """Return the chosen estimate of KL(pi || pi_ref) per token, zero where masked.

    Args:
        logp: Log-probabilities under the current policy, in nats. [B, T]
        ref_logp: The same tokens under the reference policy. [B, T]
        loss_mask: True where the token is trained; other entries are ignored. [B, T]
        estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
        clamp: See :func:`kl_k3`; the others ignore it.
        largest: See :func:`kl_k3`; the others ignore it.

    Returns:
        Estimate in nats per token, zero in value and gradient where masked. [B, T]

    Raises:
        ValueError: If shapes differ or the estimator is unknown.
    """
    check_choice("estimator", estimator, KL_ESTIMATORS)
    check_mask(loss_mask, logp=logp, ref_logp=ref_logp)
    # Masked before the estimate: zeroing the result would fix its value, but an
    # infinite difference would leave NaN in the gradient.
    logp = logp.masked_fill(~loss_mask, 0.0)
    ref_logp = ref_logp.masked_fill(~loss_mask, 0.0)
    if estimator == "k1":
        return kl_k1(logp, ref_logp)
    if estimator == "k2":
        return kl_k2(logp, ref_logp)
    return kl_k3(logp, ref_logp, clamp=clamp, largest=largest)


def approx_kl(logp: Tensor, old_logp: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the mean ``k3`` estimate of KL(pi_old || pi) over trained tokens.

    It measures the size of an update. Since the tokens came from pi_old, the roles
    are swapped against :func:`kl_penalty`: ``exp(d) - d - 1``, d = logp - old_logp.

    Args:
        logp: Log-probabilities under the current policy, in nats. [B, T]
        old_logp: The same tokens under the policy that sampled them. [B, T]
        loss_mask: True where the token is trained. [B, T]

    Returns:
        Nats per token (scalar, detached); 0.0 if no token is trained.

    Raises:
        ValueError: If shapes differ.
    """
    # The arguments are swapped against kl_penalty(): the samples come from pi_old.
    per_token = kl_penalty(old_logp.detach(), logp.detach(), loss_mask, "k3")
    return per_token.sum() / loss_mask.sum().clamp(min=1)
