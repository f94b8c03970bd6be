"""Policy losses that can replace PPO's clipped surrogate.

A policy loss takes a :class:`~rllib_llm.losses.token_batch.TokenBatch` and returns the
loss of each token, to be minimised [B, T], and the tokens on which a bound acted
[B, T]. docs/losses.md has a section for each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllib_llm.components.registry import component
from rllib_llm.losses._checks import check_choice, check_positive
from rllib_llm.losses.surrogate import clipped_surrogate
from rllib_llm.losses.token_batch import LEVELS, TokenBatch, requires

DIVERGENCES = ("tv", "kl")


@component(
    "policy_loss", "ppo_clip", paper="Schulman et al. 2017, arXiv:1707.06347, eq. 7"
)
def ppo_clip(
    batch: TokenBatch,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    form: str = "hard",
) -> tuple[Tensor, Tensor]:
    """Clip the probability ratio on both sides.

    Args:
        batch: Tokens.
        low: The ratio is clipped below at ``1 - low``, in (0, 1].
        high: The ratio is clipped above at ``1 + high``; DAPO's clip-higher
            (arXiv:2503.14476): 0.28.
        dual: Bound on the ratio where the advantage is negative, > 1 (dual clip,
            arXiv:1912.09729); None for none.
        form: "hard", or "soft": above the upper bound the value is the same, but the
            gradient ``(1 + high) * A * grad logp`` stays (AEPO, arXiv:2510.14545).
    """
    _check_range(low, high)
    if dual is not None and not dual > 1:
        raise ValueError(f"dual is {dual}. It must be above 1, e.g. 3.0, or None.")
    return clipped_surrogate(
        batch.ratio,
        batch.advantages,
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
        form=form,
    )


@component("policy_loss", "loop", paper="LOOP, Chen et al. 2025, arXiv:2502.01600")
def loop(batch: TokenBatch, *, clip: float = 0.1) -> tuple[Tensor, Tensor]:
    """Clip the ratio multiplicatively, at ``1 / (1 + clip)`` and ``1 + clip``."""
    check_positive("clip", clip, "Use e.g. 0.1.")
    return ppo_clip(batch, low=1.0 - 1.0 / (1.0 + clip), high=clip)


@component("policy_loss", "gspo", paper="Zheng et al. 2025, arXiv:2507.18071, sec. 4.3")
@requires("sequences", when=lambda s: s.get("level", "sequence") == "sequence")
def gspo(
    batch: TokenBatch,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
    level: str = "sequence",
) -> tuple[Tensor, Tensor]:
    """Clip one ratio per sequence, the geometric mean over its tokens (GSPO-token).

    Args:
        batch: Whole sequences.
        low: The ratio is clipped below at ``1 - low``.
        high: The ratio is clipped above at ``1 + high``.
        level: "sequence", or "turn": one ratio per turn.
    """
    _check_range(low, high)
    check_choice("level", level, LEVELS[1:])
    log_ratio = batch.reduce(batch.log_ratio, level).detach()
    # The value is that of the whole sequence, the gradient that of each token alone.
    ratio = (log_ratio + batch.logp - batch.logp.detach()).exp()
    return clipped_surrogate(ratio, batch.advantages, clip_low=low, clip_high=high)


@component("policy_loss", "cispo", paper="MiniMax-M1 2025, arXiv:2506.13585")
def cispo(
    batch: TokenBatch, *, low: float = 1.0, high: float = 4.0
) -> tuple[Tensor, Tensor]:
    """Weight REINFORCE by the clipped ratio: every token keeps a gradient.

    Args:
        batch: Tokens.
        low: The weight is at least ``1 - low``; 1 for no lower bound.
        high: The weight is at most ``1 + high``.
    """
    _check_range(low, high)
    ratio = batch.ratio.detach()
    weight = ratio.clamp(1.0 - low, 1.0 + high)
    # The gradient is that of log p, times a constant weight: a token beyond the bound
    # still learns, which is CISPO's difference from PPO.
    return -weight * batch.advantages * batch.logp, weight != ratio


@component("policy_loss", "sapo", paper="Gao et al. 2025, arXiv:2511.20347")
def sapo(
    batch: TokenBatch, *, tau_pos: float = 1.0, tau_neg: float = 1.05
) -> tuple[Tensor, Tensor]:
    """Gate the ratio by a sigmoid: the gradient fades as the ratio leaves 1.

    Args:
        batch: Tokens.
        tau_pos: Steepness of the gate where the advantage is positive, > 0.
        tau_neg: Steepness elsewhere, > 0.
    """
    check_positive("tau_pos", tau_pos, "Use e.g. 1.0.")
    check_positive("tau_neg", tau_neg, "Use e.g. 1.05.")
    tau = torch.where(batch.advantages > 0, tau_pos, tau_neg).to(batch.logp.dtype)
    # Scaled by 4 / tau so that the gradient at ratio 1 is that of the plain ratio: the
    # sigmoid's slope there is tau / 4.
    gate = torch.sigmoid(tau * (batch.ratio - 1.0)) * 4.0 / tau
    return -gate * batch.advantages, torch.zeros_like(batch.mask)


@component("policy_loss", "dppo", paper="Qi et al. 2026, arXiv:2602.04879")
def dppo(
    batch: TokenBatch,
    *,
    low: float = 0.2,
    high: float = 0.2,
    divergence: str = "tv",
) -> tuple[Tensor, Tensor]:
    """Drop tokens whose probability moved too far in the update's direction.

    Args:
        batch: Tokens.
        low: Largest divergence of a token that became less likely, > 0.
        high: Largest divergence of a token that became more likely, > 0.
        divergence: "tv": ``|p - p_old|``, or "kl" between the binary distributions of
            this token and any other.
    """
    check_positive("low", low, "Use e.g. 0.2 (tv) or 0.05 (kl).")
    check_positive("high", high, "Use e.g. 0.2 (tv) or 0.05 (kl).")
    check_choice("divergence", divergence, DIVERGENCES)
    # The trust region is a constant mask: no gradient flows through the divergence.
    new, old = batch.logp.detach().exp(), batch.old_logp.exp()
    distance = (new - old).abs()
    if divergence == "kl":
        distance = _binary_kl(old, new)
    # Like the clip of PPO, the bound acts only in the direction of the advantage; a
    # token that moved too far in the wrong direction can still be pulled back.
    up, down = (new > old) & (distance > high), (new < old) & (distance > low)
    advantages = batch.advantages
    dropped = ((advantages > 0) & up) | ((advantages < 0) & down)
    return -(batch.ratio * advantages).masked_fill(dropped, 0.0), dropped


@component("policy_loss", "pg", paper="Williams 1992, REINFORCE")
def pg(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Use the plain policy gradient, without a ratio: for one step per iteration."""
    return -batch.advantages * batch.logp, torch.zeros_like(batch.mask)


@component(
    "policy_loss", "log_ratio", paper="Kimi k1.5 2025, arXiv:2501.12599, sec. 2.3.2"
)
@requires("unweighted")
@requires("sequences", when=lambda s: s.get("level", "sequence") == "sequence")
def log_ratio(
    batch: TokenBatch,
    *,
    beta: float = 0.1,
    kind: str = "mse",
    delta: float = 1.0,
    level: str = "sequence",
) -> tuple[Tensor, Tensor]:
    """Fit the log-ratio to the advantage: ``(beta * log ratio - A)**2``.

    Args:
        batch: Whole sequences.
        beta: Weight of the log-ratio to the policy before the update, > 0.
        kind: "mse", or "huber": linear beyond ``delta``.
        delta: Error beyond which "huber" is linear, > 0.
        level: Unit over which log-ratios are summed: "sequence", "turn" or "token".
    """
    return _fit(batch, batch.log_ratio, beta, kind, delta, level)


@component(
    "policy_loss", "ref_log_ratio", paper="WebRL, Qi et al. 2024, arXiv:2411.02337"
)
@requires("unweighted", "reference")
@requires("sequences", when=lambda s: s.get("level") == "sequence")
def ref_log_ratio(
    batch: TokenBatch,
    *,
    beta: float = 0.1,
    kind: str = "mse",
    delta: float = 1.0,
    level: str = "turn",
) -> tuple[Tensor, Tensor]:
    """Fit the log-ratio to the frozen reference policy, otherwise as ``log_ratio``.

    Args:
        batch: Whole sequences.
        beta: Weight of the log-ratio to the reference, > 0.
        kind: "mse", or "huber": linear beyond ``delta``.
        delta: Error beyond which "huber" is linear, > 0.
        level: Unit over which log-ratios are summed: "sequence", "turn" or "token".
    """
    return _fit(batch, batch.logp - batch.ref_logp, beta, kind, delta, level)


@component(
    "policy_loss", "nll", paper="DigiRL, arXiv:2406.11896; AWR, arXiv:1910.00177"
)
@requires("unweighted")
def nll(
    batch: TokenBatch,
    *,
    above: float | None = 0.0,
    weights: str = "ones",
    temperature: float = 1.0,
    largest: float = 20.0,
) -> tuple[Tensor, Tensor]:
    """Imitate good samples: filtered or weighted behaviour cloning.

    Args:
        batch: Tokens.
        above: Only tokens with a larger advantage are imitated; None: all.
        weights: "ones"; "advantage"; "exp": ``exp(A / temperature)`` (AWR, RWR).
        temperature: Temperature of "exp", > 0.
        largest: Bound of the weight "exp", > 0.
    """
    check_choice("weights", weights, ("ones", "advantage", "exp"))
    check_positive("temperature", temperature, "Use e.g. 1.0.")
    check_positive("largest", largest, "Use e.g. 20.0.")
    advantages = batch.advantages
    # Imitation weights are not importance weights: `requires("unweighted")` keeps them
    # free of `tis`.
    weight = {
        "ones": torch.ones_like(advantages),
        "advantage": advantages,
        "exp": (advantages / temperature).exp().clamp(max=largest),
    }[weights]
    if above is not None:
        weight = weight * (advantages > above)
    return -weight * batch.logp, torch.zeros_like(batch.mask)


def _fit(
    batch: TokenBatch,
    log_ratio: Tensor,
    beta: float,
    kind: str,
    delta: float,
    level: str,
) -> tuple[Tensor, Tensor]:
    check_positive("beta", beta, "Use e.g. 0.1.")
    check_choice("kind", kind, ("mse", "huber"))
    check_positive("delta", delta, "Use e.g. 1.0.")
    # The mean over the unit: the squared error is between one log-ratio and one
    # advantage per turn or sequence. [B, T]
    advantages = batch.reduce(batch.advantages, level)
    # log p of a text is the sum over its tokens, hence "sum" for the ratio.
    error = beta * batch.reduce(log_ratio, level, "sum") - advantages
    size = error.abs()
    if kind == "huber":  # 2 delta |e| - delta^2, which meets e^2 at delta
        loss = torch.where(size <= delta, error.square(), delta * (2 * size - delta))
        return loss, size > delta
    return error.square(), torch.zeros_like(batch.mask)


def _binary_kl(old: Tensor, new: Tensor) -> Tensor:
    """Return KL(old || new) of "this token" against "any other", in nats. [B, T]"""
    # p = 1 occurs in float32 for certain tokens; log(0) of "any other" would be -inf.
    tiny = torch.finfo(old.dtype).tiny
    other_old, other_new = (1.0 - old).clamp(min=tiny), (1.0 - new).clamp(min=tiny)
    old, new = old.clamp(min=tiny), new.clamp(min=tiny)
    return old * (old / new).log() + other_old * (other_old / other_new).log()


def _check_range(low: float, high: float) -> None:
    if not 0 < low <= 1:
        raise ValueError(
            f"low is {low}. It must lie in (0, 1], since a ratio is never negative."
        )
    check_positive("high", high, "Use e.g. 0.2.")
