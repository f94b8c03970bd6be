"""Nucleus masks of tokens, as bits, and the policy that they are computed with.

In NLPO (Ramamurthy et al., 2022, "Is Reinforcement Learning (Not) for Natural Language
Processing", section 4) the policy chooses among the tokens of the smallest set with
probability ``top_p`` under a *mask policy*, a copy of the policy that is renewed every
few iterations. The sampler records the set of each token, so that the Learner restricts
the same distribution, free of the rounding at a set's border.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rllib_llm.modules.reference import frozen

if TYPE_CHECKING:
    from torch import nn


def mask_policy(lm: nn.Module, config: dict[str, Any]) -> tuple[nn.Module, ...]:
    """Return a copy of a policy's language model, or nothing without a nucleus mask.

    Args:
        lm: The policy's language model.
        config: The RLModule's ``model_config``.
    """
    return (frozen(copy.deepcopy(lm)),) if config.get("mask_policy") else ()


def pack_bits(allowed: Tensor) -> np.ndarray:
    """Return sets of tokens as bits. bool [B, V] -> uint8 [B, ceil(V / 8)]"""
    return np.packbits(allowed.cpu().numpy(), axis=-1)


def unpack_bits(bits: Tensor, vocabulary: int) -> Tensor:
    """Return the sets of :func:`pack_bits`. uint8 [N, ceil(V / 8)] -> bool [N, V]"""
    shifts = torch.arange(7, -1, -1, device=bits.device, dtype=torch.uint8)
    wide = (bits[..., None] >> shifts) & 1
    return wide.flatten(-2)[..., :vocabulary].bool()


def forbid(logits: Tensor, bits: Tensor) -> Tensor:
    """Return logits with -inf for tokens outside of a set.

    Args:
        logits: Scores of the vocabulary. [N, V]
        bits: Allowed tokens, see :func:`pack_bits`. uint8 [N, ceil(V / 8)]
    """
    return logits.masked_fill(~unpack_bits(bits, logits.shape[-1]), -torch.inf)
