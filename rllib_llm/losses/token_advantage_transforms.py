"""Transforms of token advantages, applied once per iteration before any update.

A transform takes a :class:`~rllib_llm.losses.token_batch.TokenBatch` with all rows of
the Learner (possibly none) and returns new advantages [B, T]. Moments and ranks are
over the tokens of all Learners. Here ``logp`` is ``old_logp`` and ``entropy`` that of
the policy before the update. Transforms act in order, after advantages are estimated
and whitened and before importance weights.
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
    """Weight tokens by their entropy: ``A * (1 + alpha * z(H))``.

    Args:
        batch: Tokens.
        alpha: Strength, >= 0; ``z`` standardises over the trained tokens.
    """
    if not alpha >= 0:
        raise ValueError(f"alpha is {alpha}. It must be >= 0, e.g. 0.2.")
    # Entropy only shapes the advantage here; a gradient would be an entropy bonus.
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
    """Add an entropy bonus that never changes an advantage's sign.

    ``A + min(alpha * H, |A| / kappa)``.

    Args:
        batch: Tokens.
        alpha: Bonus per nat, > 0.
        kappa: The bonus is at most ``|A| / kappa``, > 1.
    """
    check_positive("alpha", alpha, "Use e.g. 0.4.")
    if not kappa > 1:
        raise ValueError(f"kappa is {kappa}. It must be above 1, e.g. 2.0.")
    # kappa > 1 keeps the sum's sign for negative advantages, too.
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
    """Keep the advantages of the highest-entropy ("forking") tokens only.

    Args:
        batch: Tokens.
        share: Share of the iteration's trained tokens, in (0, 1].
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
    """Set some high-covariance tokens' advantages to 0: they reduce entropy most.

    They are drawn at random from those whose covariance ``(log p - mean) * (A - mean)``
    lies in a band.

    Args:
        batch: Tokens.
        share: Number of drawn tokens as a share of the trained ones, in (0, 1]; at
            least one token.
        low: Lower end of the band.
        high: Upper end of the band.
    """
    check_share("share", share)
    if not low < high:
        raise ValueError(f"low={low} must be below high={high}.")
    covariance = covariances(batch)  # [B, T]
    # (row, column) of the candidates. [K, 2]
    in_band_places = (batch.mask & (covariance >= low) & (covariance <= high)).nonzero()
    total = len(batch.from_all_learners(batch.advantages[batch.mask])[0])
    pooled, start = batch.from_all_learners(
        batch.advantages[in_band_places[:, 0], in_band_places[:, 1]]
    )
    # Equal seeds draw the same tokens on all Learners.
    generator = torch.Generator().manual_seed(batch.seed)
    drawn = torch.randperm(len(pooled), generator=generator)[
        : max(1, int(share * total))
    ]
    # Of the tokens drawn over all Learners, those that this Learner holds.
    local_places = (
        drawn[(drawn >= start) & (drawn < start + len(in_band_places))] - start
    )
    rows, cols = in_band_places[local_places.to(in_band_places.device)].unbind(1)
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
    """Weight positive and negative advantages differently (W-REINFORCE).

    Args:
        batch: Tokens.
        positive: Weight of positive advantages, >= 0.
        negative: Weight of negative advantages, >= 0.
    """
    if positive < 0 or negative < 0:
        raise ValueError(f"positive={positive}, negative={negative} must be >= 0.")
    advantages = batch.advantages
    return torch.where(advantages > 0, positive * advantages, negative * advantages)


@component(
    "token_advantage_transform", "drop_small", paper="LOOP 2025, arXiv:2502.01600"
)
def drop_small(batch: TokenBatch, *, least: float = 0.01) -> Tensor:
    """Set small advantages to 0.

    Args:
        batch: Tokens.
        least: Smallest magnitude that is kept, > 0.
    """
    check_positive("least", least, "Use e.g. 0.01.")
    return batch.advantages * (batch.advantages.abs() >= least)


def covariances(batch: TokenBatch) -> Tensor:
    """Return centred log-probability times centred advantage, 0 where masked. [B, T]

    Its mean over tokens is the covariance that predicts how fast entropy falls (Cui et
    al. 2025, arXiv:2505.22617), at the policy before the update.
    """
    logp, advantages = batch.old_logp, batch.advantages
    # Centred over all Learners, as the covariance of the paper is over the batch.
    products = (logp - batch.moments(logp)[0]) * (
        advantages - batch.moments(advantages)[0]
    )
    return products.masked_fill(~batch.mask, 0.0)
