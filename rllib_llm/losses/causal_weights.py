"""Weights of a reply's tokens by their effect on the action that is parsed from it."""

from __future__ import annotations

import torch
from torch import Tensor

_POWER = 0.5


def spans(length: int, span: int) -> Tensor:
    """Return the tokens that are masked together, beginning with each one.

    Args:
        length: Number of tokens, L.
        span: Number of tokens that are masked together; fewer at the end.

    Returns:
        bool [L, L]; row i is true from token i to token i + span - 1.
    """
    first, token = torch.arange(length)[:, None], torch.arange(length)
    return (token >= first) & (token < first + span)


def causal_weights(
    probs: Tensor, masked_probs: Tensor, is_token: Tensor, counts: Tensor
) -> Tensor:
    """Return the weight of each token, in [0, 1].

    The effect of token i is ``abs(p(a) - p(a without i))``, p(a) the probability of
    the reply's own action (Feng et al. 2025, arXiv:2505.03792). Effects are scaled to
    [0, 1] within the reply by their minimum and maximum; the weight is the square root,
    as in the authors' code.

    Args:
        probs: Probability of the reply's action. [N]
        masked_probs: The same, with the tokens from each one on masked. [N, L]
        is_token: False for padding. bool [N, L]
        counts: False for tokens whose effect is 0 by definition. bool [N, L]

    Returns:
        0 for padding, and for all tokens of a reply whose effects are equal. [N, L]
    """
    effects = (probs[:, None] - masked_probs).abs() * (counts & is_token)
    least = effects.masked_fill(~is_token, torch.inf).min(dim=1, keepdim=True).values
    most = effects.max(dim=1, keepdim=True).values
    scale = torch.where(most > least, most - least, torch.inf)
    return ((effects - least) / scale).clamp(min=0.0).pow(_POWER) * is_token
