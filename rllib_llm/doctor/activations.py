"""How much memory the activations of one training pass take, by formula."""

from __future__ import annotations

from typing import Any

# Korthikanti et al. 2022 (arXiv:2205.05198), eq. 2 without attention scores, which
# fused attention does not keep: 34 bytes per token, layer and hidden unit at 16 bits.
_BYTES_AT_16_BIT = 34
_LOGIT_COPIES = 2  # float32 logits, and their gradient


def activation_bytes(
    text_config: Any,
    tokens: int,
    *,
    element_size: int,
    gradient_checkpointing: bool,
    head_chunk_tokens: int | None,
) -> int:
    """Estimate the bytes that a forward and backward pass keeps.

    It is an estimate for a usual decoder; mixtures of experts and others differ.

    Args:
        text_config: The language model's config.
        tokens: Token positions of the pass.
        element_size: Bytes of a number in it.
        gradient_checkpointing: Whether layers are computed again instead.
        head_chunk_tokens: How many positions' logits exist at a time; None: all.
    """
    width, layers = text_config.hidden_size, text_config.num_hidden_layers
    layer = _BYTES_AT_16_BIT * width * element_size // 2
    inside = layer * layers
    if gradient_checkpointing:  # the layers' inputs, and one layer in full
        inside = width * element_size * layers + layer
    positions = min(tokens, head_chunk_tokens or tokens)
    logits = _LOGIT_COPIES * 4 * text_config.vocab_size * positions
    return inside * tokens + logits
