"""What is done to the advantages of tokens, once per iteration, before any update.

A transform takes a :class:`~rllib_llm.losses.token_batch.TokenBatch` with all rows of
the Learner, at times none, and returns new advantages [B, T]. Moments and ranks are
over the tokens of all Learners. Here ``logp`` is ``old_logp`` and
``entropy`` that of the policy before the update. Transforms act in order, after credit
and its whitening and before importance weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rllib_llm.components.registry import component
from rllib_llm.losses._checks import check_positive
from rllib_llm.losses.loss_terms import check_share
from rllib_llm.losses.token_batch import TokenBatch


@component(
    "token_advantage_transform", "entropy_shaping", paper="AEPO 2025, arXiv:2510.14545"
)
def entropy_shaping(batch: TokenBatch, *, alpha: float = 0.2) -> Tensor:
    """Tokens sampled where much was open count more: ``A * (1 + alpha * z(H))``.

    Args:
        batch: Tokens.
        alpha: Strength, >= 0; ``z`` standardises over the trained tokens.
    """
    if not alpha >= 0:
        raise ValueError(f"alpha is {alpha}. It must be >= 0, e.g. 0.2.")
    entropy = batch.entropy.detach()
    mean, std = batch.moments(entropy)
    return batch.advantages * (1.0 + alpha * (entropy - mean) / (std + 1e-8))


@component(
    "token_advantage_transform",
    "entropy_advantage",
    paper="Cheng et al. 2025, 2506.14758",
)
def entropy_advantage(
    batch: TokenBatch, *, alpha: float = 0.4, kappa: float = 2.0
) -> Tensor:
    """A bonus for open choices that never turns an advantage's sign.

    ``A + min(alpha * H, |A| / kappa)``.

    Args:
        batch: Tokens.
        alpha: Bonus per nat, > 0.
        kappa: The bonus is at most ``|A| / kappa``, > 1.
    """
    check_positive("alpha", alpha, "Use e.g. 0.4.")
    if not kappa > 1:
        raise ValueError(f"kappa is {kappa}. It must be above 1, e.g. 2.0.")
    bonus = torch.minimum(
        alpha * batch.entropy.detach(), batch.advantages.abs() / kappa
    )
    return batch.advantages + bonus


@component(
    "token_advantage_transform",
    "top_entropy",
    paper="Wang et al. 2025, arXiv:2506.01939",
)
def top_entropy(batch: TokenBatch, *, share: float = 0.2) -> Tensor:
    """Only the tokens of highest entropy ("forking" tokens) move the policy.

    Args:
        batch: Tokens.
        share: Which share of the iteration's trained tokens, in (0, 1].
    """
    check_share("share", share)
    assert batch.entropy_rank is not None  # required above
    return batch.advantages * (batch.entropy_rank < share)


@component(
    "token_advantage_transform", "clip_cov", paper="Cui et al. 2025, arXiv:2505.22617"
)
def clip_cov(
    batch: TokenBatch, *, share: float = 2e-4, low: float = 1.0, high: float = 5.0
) -> Tensor:
    """A few of the tokens that cost most entropy do not move the policy.

    Drawn at random from those whose covariance ``(log p - mean) * (A - mean)`` lies in
    a band.

    Args:
        batch: Tokens.
        share: How many, as a share of the trained tokens, in (0, 1]; at least one.
        low: Lower end of the band.
        high: Upper end.
    """
    check_share("share", share)
    if not low < high:
        raise ValueError(f"low={low} must be below high={high}.")
    covariance = covariances(batch)
    found = (batch.mask & (covariance >= low) & (covariance <= high)).nonzero()
    total = len(batch.everyone(batch.advantages[batch.mask])[0])
    in_band, start = batch.everyone(batch.advantages[found[:, 0], found[:, 1]])
    draw = torch.Generator().manual_seed(batch.seed)  # alike on all Learners
    bound = torch.randperm(len(in_band), generator=draw)[: max(1, int(share * total))]
    ours = bound[(bound >= start) & (bound < start + len(found))] - start
    rows, cols = found[ours.to(found.device)].unbind(1)
    advantages = batch.advantages.clone()
    advantages[rows, cols] = 0.0
    return advantages


@component(
    "token_advantage_transform",
    "weigh_signs",
    paper="Zhu et al. 2025, arXiv:2506.01347",
)
def weigh_signs(
    batch: TokenBatch, *, positive: float = 0.1, negative: float = 1.0
) -> Tensor:
    """Rewards and punishments weigh differently (W-REINFORCE).

    Args:
        batch: Tokens.
        positive: Weight of positive advantages, >= 0.
        negative: Of negative ones, >= 0.
    """
    if positive < 0 or negative < 0:
        raise ValueError(f"positive={positive}, negative={negative} must be >= 0.")
    advantages = batch.advantages
    return torch.where(advantages > 0, positive * advantages, negative * advantages)


@component(
    "token_advantage_transform", "drop_small", paper="LOOP 2025, arXiv:2502.01600"
)
def drop_small(batch: TokenBatch, *, least: float = 0.01) -> Tensor:
    """Tokens with next to no advantage do not move the policy.

    Args:
        batch: Tokens.
        least: Smallest magnitude that counts, > 0.
    """
    check_positive("least", least, "Use e.g. 0.01.")
    return batch.advantages * (batch.advantages.abs() >= least)


def covariances(batch: TokenBatch) -> Tensor:
    """Centred log-probability times centred advantage, 0 where masked. [B, T]

    The summand of the covariance that tells how fast entropy falls (Cui et al. 2025,
    arXiv:2505.22617), at the policy before the update.
    """
    logp, advantages = batch.old_logp, batch.advantages
    found = (logp - batch.moments(logp)[0]) * (
        advantages - batch.moments(advantages)[0]
    )
    return found.masked_fill(~batch.mask, 0.0)
