"""Scaled-dot-product attention without copies of the cache in grouped-query models.

transformers' function repeats keys and values once per query head whenever a mask is
given. In decoding that copy costs more than all other work together. Folding the query
heads that share a key head into the query axis avoids it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION_NAME = "rllib_llm_slots"


def slot_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute transformers' ``sdpa`` attention without repeating keys and values.

    Args:
        module: The attention layer.
        query: Queries. [B, heads, T, head_dim]
        key: Keys. [B, kv_heads, K, head_dim]
        value: Values. [B, kv_heads, K, head_dim]
        attention_mask: Additive mask [B, 1, T, K]. None: a single query attends to all
            keys, several queries attend causally.
        dropout: Dropout probability; 0 in evaluation.
        scaling: Factor of the scores; None is 1 / sqrt(head_dim).
        **kwargs: Further arguments of the model, for transformers' function.

    Returns:
        The attended values [B, T, heads, head_dim], and None for the weights.
    """
    batch, heads, width, _ = query.shape
    kv_heads = key.shape[1]
    settings: dict[str, Any] = {"dropout_p": dropout, "scale": scaling}
    is_plain = kwargs.get("position_bias") is None
    if is_plain and width == 1:
        # Fold the query heads of one key head into the query axis: no copies of keys.
        query = query.reshape(batch, kv_heads, heads // kv_heads, -1)
        if query.dtype == torch.float32 and query.device.type == "cpu":
            # On CPUs two matrix products are faster than the fused kernel.
            out = _products(query, key, value, attention_mask, scaling)
        else:
            out = scaled_dot_product_attention(
                query, key, value, attention_mask, **settings
            )  # [B, kv_heads, heads // kv_heads, head_dim]
        return out.reshape(batch, 1, heads, -1), None
    # On CUDA a mask together with enable_gqa falls back to the slow math kernel.
    has_mask = attention_mask is not None
    if is_plain and kv_heads < heads and (not has_mask or query.device.type == "cpu"):
        settings |= {"is_causal": not has_mask, "enable_gqa": True}
        out = scaled_dot_product_attention(
            query, key, value, attention_mask, **settings
        )
        return out.transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        dropout=dropout,
        scaling=scaling,
        **kwargs,
    )


def _products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
) -> Tensor:
    """Compute attention of queries that share their keys.

    Args:
        query: Queries. [B, kv_heads, queries, head_dim]
        key: Keys. [B, kv_heads, K, head_dim]
        value: Values. [B, kv_heads, K, head_dim]
        mask: Additive mask; None: all keys are visible. [B, 1, 1, K]
        scaling: Factor of the scores; None is 1 / sqrt(head_dim).

    Returns:
        The attended values. [B, kv_heads, queries, head_dim]
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    batch, kv_heads = key.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (query, key, value))
    # One product that scales and adds the mask, instead of three passes over scores.
    if mask is None:
        scores = torch.bmm(q * factor, k.mT)
    else:
        bias = mask[:, 0].expand(batch, kv_heads, -1).reshape(len(k), 1, -1)
        scores = torch.baddbmm(bias, q, k.mT, alpha=factor)
    return torch.bmm(scores.softmax(-1), v).view(query.shape)


AttentionInterface.register(ATTENTION_NAME, slot_attention_forward)
