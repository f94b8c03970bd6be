"""Models that the torch engine supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from rllib_llm import compat
from rllib_llm.engines.attention import ATTENTION_NAME
from rllib_llm.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SERVED_LAYER_TYPES = ("full_attention", "sliding_attention")
_SERVED_ATTENTION = ("sdpa", "eager", ATTENTION_NAME)
ADVICE = (
    "The torch engine serves decoder-only models whose layer types are "
    f"{', '.join(_SERVED_LAYER_TYPES)}, such as qwen2, qwen3, llama, mistral, gemma2, "
    "gemma3_text, phi3, gpt2. Use one of these or another engine."
)


def check_model(model: nn.Module) -> Any:
    """Check that the torch engine can serve a model; return its text config.

    Raises:
        ModelError: If it cannot.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise ModelError(
            f"The torch engine needs a transformers causal language model, got "
            f"{type(model).__name__}. Load it with AutoModelForCausalLM."
        )
    # Multimodal configs nest the text model's.
    config = config.get_text_config()
    kind = f"Models of type {config.model_type!r}"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} are encoder-decoders. {ADVICE}")
    layer_types = getattr(config, "layer_types", None) or ()
    unknown = sorted(set(layer_types) - set(_SERVED_LAYER_TYPES))
    if unknown:
        raise ModelError(f"{kind} have layers of {', '.join(unknown)}. {ADVICE}")
    # E.g. Mamba: its state cannot be cut back to a common prefix.
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{kind} keep a recurrent state. {ADVICE}")
    attention = config._attn_implementation
    if attention in _SERVED_ATTENTION:
        return config
    # Flash attention takes no masks: the engine attends with sdpa in its place, while
    # the Learner keeps it.
    if "flash" not in (attention or ""):
        raise ModelError(
            "The torch engine needs explicit attention masks, which the attention "
            f"implementation {attention!r} does not support. Load the model with "
            "attn_implementation='sdpa' (or 'eager')."
        )
    if not compat.supports_sdpa(model) or _caps_scores(config):
        raise ModelError(
            f"{kind} with the attention implementation {attention!r} cannot be served "
            "by the torch engine, which would attend with sdpa: sdpa does not compute "
            "their attention. Load the model with attn_implementation='eager', or use "
            "another engine."
        )
    return config


def _caps_scores(config: PretrainedConfig) -> bool:
    """Return whether scores of attention go through tanh, which sdpa leaves out."""
    return getattr(config, "attn_logit_softcapping", None) is not None


def window_of(config: PretrainedConfig) -> int | None:
    """Return the sliding window in tokens, or None if no layer has one."""
    layer_types = getattr(config, "layer_types", None)
    # Some configs have a window that no layer uses.
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return getattr(config, "sliding_window", None)
