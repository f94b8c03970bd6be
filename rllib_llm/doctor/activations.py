"""Memory estimate of one training pass, beyond what lives longer than it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from rllib_llm.types import LLMConfig

# Positions whose log-probabilities are computed at a time, and the float32 arrays of
# their vocabulary: see losses/logprobs.py.
_LOGP_POSITIONS, _LOGP_COPIES = 256, 4
# Gradients on their way through the layer that is differentiated.
_IN_FLIGHT = 1.15


def activation_bytes(
    text_config: PretrainedConfig,
    tokens: int,
    *,
    element_size: int,
    gradient_checkpointing: bool,
    head_chunk_tokens: int | None,
    weight_size: int | None = None,
    adapters: bool = False,
) -> int:
    """Return the estimated peak of a pass beside weights, gradients and optimiser.

    Either the gradients of the logits or those of the last layer make the peak. The
    formula is that of a dense decoder with a gated MLP and normalised queries and keys,
    e.g. Qwen3; mixtures of experts and others differ. docs/gpu.md compares it with a
    GPU.

    Args:
        text_config: The language model's config.
        tokens: Token positions of the pass.
        element_size: Bytes of an activation.
        gradient_checkpointing: Whether layers are recomputed in the backward pass.
        head_chunk_tokens: Positions whose logits exist at the same time; None: all.
        weight_size: Bytes of a weight; None: those of an activation.
        adapters: Whether only LoRA adapters are trained.
    """
    width, layers = text_config.hidden_size, text_config.num_hidden_layers
    layer = _layer_bytes(text_config, element_size, adapters=adapters)
    inputs = width * element_size * layers if gradient_checkpointing else layer * layers
    vocabulary = text_config.vocab_size
    positions = min(tokens, head_chunk_tokens or tokens)
    # Logits and their gradient.
    head = 2 * element_size * vocabulary * positions
    head += _LOGP_COPIES * 4 * vocabulary * min(positions, _LOGP_POSITIONS)
    if not adapters:
        # A chunk's gradient of the output layer, and the sum of the earlier ones.
        head += 2 * (weight_size or element_size) * vocabulary * width
    recomputed = _IN_FLIGHT if gradient_checkpointing else _IN_FLIGHT - 1
    return inputs * tokens + max(int(recomputed * layer * tokens), head)


def pass_bytes(config: LLMConfig, model: PretrainedConfig, tokens: int) -> int:
    """Return :func:`activation_bytes` of a policy's micro-batch.

    Args:
        config: The policy's config.
        model: The language model's config.
        tokens: Token positions of the pass.
    """
    is_low = config.lm_autocast or config.lm_dtype != "float32"
    return activation_bytes(
        model.get_text_config(),
        tokens,
        element_size=2 if is_low else 4,
        gradient_checkpointing=config.gradient_checkpointing,
        head_chunk_tokens=config.head_chunk_tokens,
        weight_size=4 if config.lm_dtype == "float32" else 2,
        adapters=bool(config.lm_lora),
    )


def _layer_bytes(config: PretrainedConfig, size: int, *, adapters: bool) -> int:
    """Return the bytes that a layer stores for its backward pass, per token.

    Counted from what autograd saves for Qwen3 and Gemma; the test counts it again.
    """
    width = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * width
    heads = config.num_attention_heads
    per_head = getattr(config, "head_dim", None) or width // heads
    queries = heads * per_head
    keys = (getattr(config, "num_key_value_heads", None) or heads) * per_head
    elements = 6 * width + 4 * inner + 2 * (queries + keys)
    # Norms: their inputs, which are copied to float32.
    normed = 2 * (queries + keys) * size + (2 * width + queries + keys) * (4 - size)
    stored = elements * size + normed
    if adapters and size < 4:
        # Adapters are float32, and so are the copies of their inputs.
        stored += 4 * (5 * width + queries + inner)
    return stored
