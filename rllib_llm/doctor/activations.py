"""Memory estimate of the activations of one training pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Korthikanti et al. 2022 (arXiv:2205.05198), eq. 2 without the attention scores, which
# fused attention does not store: 34 bytes per token, layer and hidden unit at 16 bits.
_BYTES_AT_16_BIT = 34
_LOGIT_COPIES = 2  # float32 logits, and their gradient


def activation_bytes(
    text_config: PretrainedConfig,
    tokens: int,
    *,
    element_size: int,
    gradient_checkpointing: bool,
    head_chunk_tokens: int | None,
) -> int:
    """Return the estimated bytes that a forward pass stores for the backward pass.

    The formula is that of a dense decoder; mixtures of experts and others differ.

    Args:
        text_config: The language model's config.
        tokens: Token positions of the pass.
        element_size: Bytes of an element.
        gradient_checkpointing: Whether layers are recomputed in the backward pass.
        head_chunk_tokens: Positions whose logits exist at the same time; None: all.
    """
    width, layers = text_config.hidden_size, text_config.num_hidden_layers
    layer = _BYTES_AT_16_BIT * width * element_size // 2
    inside = layer * layers
    if gradient_checkpointing:  # the inputs of all layers, and one layer in full
        inside = width * element_size * layers + layer
    positions = min(tokens, head_chunk_tokens or tokens)
    logits = _LOGIT_COPIES * 4 * text_config.vocab_size * positions
    return inside * tokens + logits
