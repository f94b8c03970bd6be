"""Recognition of the decoder layout that :mod:`rllib_llm.engines.fused_forward` runs.

Recognition is exact: the class of the model, and every module that the fused forward
replaces, must be transformers' own, without hooks and without a replaced ``forward``.
Layers that the fused forward calls (e.g. linear layers with adapters) may be anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import nn

from rllib_llm import compat
from rllib_llm.engines.rotary_table import has_three_axes
from rllib_llm.pictures.text_part import TextPart

_TRUNKS = {
    "LlamaModel": "llama",
    "MistralModel": "mistral",
    "Qwen2Model": "qwen2",
    "Qwen3Model": "qwen3",
    "Qwen2VLTextModel": "qwen2_vl",
    "Qwen2_5_VLTextModel": "qwen2_5_vl",
    "Qwen3VLTextModel": "qwen3_vl",
}
"""Classes of the layers, and the packages of transformers that they stand in."""
_ACTIVATIONS = ("silu", "swish")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")


def why_not_fused(model: nn.Module) -> str | None:
    """Return the reason why the fused forward cannot run a model.

    Args:
        model: A causal language model, or a :class:`TextPart`.

    Returns:
        The reason, or None if the fused forward can run it.
    """
    kind = type(getattr(model, "model", None))
    if not _is_recognised(model, kind):
        return (
            f"{type(model).__name__} is not one of transformers' models on "
            f"{', '.join(_TRUNKS)}"
        )
    config = model.config
    if config.hidden_act not in _ACTIVATIONS:
        return f"hidden_act {config.hidden_act!r} is not one of {_ACTIVATIONS}"
    rope = model.model.rotary_emb.rope_type
    if rope not in _STATIC_ROPE:
        return f"rotary positions of type {rope!r} change with the length"
    settings = getattr(config, "rope_parameters", None) or {}
    if "mrope_section" in settings and not has_three_axes(model.model):
        # transformers before 5.17
        return "its attention chooses the axes of its positions"
    for module in _replaced(model):
        if type(module).__module__ != kind.__module__ and module is not model:
            return f"{type(module).__name__} is not of {kind.__module__}"
    for module in itertools.chain(_replaced(model), plain_linears(model)):
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a {type(module).__name__} has forward hooks"
        # An instance attribute, e.g. of accelerate or of a patched layer.
        if "forward" in vars(module):
            return f"the forward of a {type(module).__name__} was replaced"
    if len({(p.device, p.dtype) for p in _base_weights(model)}) > 1:
        return "its weights are on several devices or of several dtypes"
    return None


def _is_recognised(model: nn.Module, layers: type) -> bool:
    """Return whether a model and its layers are of transformers' classes."""
    # The module's path, too: a class of the same name elsewhere may compute something
    # else.
    home = f"transformers.models.{_TRUNKS.get(layers.__name__)}."
    if not layers.__module__.startswith(home):
        return False
    name = f"{layers.__name__.removesuffix('Model')}ForCausalLM"
    kind = type(model)
    is_whole = (kind.__module__, kind.__name__) == (layers.__module__, name)
    return is_whole or kind is TextPart


def is_plain(module: nn.Module) -> bool:
    """Return whether a linear layer consists of weight and bias alone."""
    return type(module) is nn.Linear


def why_not_together(models: Sequence[nn.Module]) -> str | None:
    """Return the reason why models that differ in their adapters cannot share a batch.

    Args:
        models: Causal language models.

    Returns:
        The reason. None if they have the same base weights in the same memory and
        differ in plain LoRA adapters only.
    """
    for model in models:
        reason = why_not_fused(model)
        if reason is not None:
            return reason
    first, *others = models
    for other in others:
        pairs = itertools.zip_longest(
            _non_linear_weights(first), _non_linear_weights(other)
        )
        for one, two in pairs:
            # Same memory, not only equal values: separate copies may differ later.
            if one is None or two is None or one.data_ptr() != two.data_ptr():
                return "their base weights differ"
    for layers in zip(*(_linears(m) for m in models), strict=True):
        bases = [base for base in map(_base, layers) if base is not None]
        # E.g. DoRA, whose base weight is scaled per adapter.
        if len(bases) < len(layers):
            return f"the adapter of a {type(layers[0]).__name__} is not a plain LoRA"
        if len({base.weight.data_ptr() for base in bases}) > 1:
            return "their base weights differ"
    if not all(is_plain(m.lm_head) for m in models):
        return "their output layers have adapters"
    return None


def _base(layer: nn.Module) -> nn.Module | None:
    if is_plain(layer):
        return layer
    return layer.get_base_layer() if compat.lora_parts(layer) else None


def plain_linears(model: nn.Module) -> list[nn.Module]:
    """Return the linear layers whose weights the fused forward reads."""
    return [m for m in _linears(model) if is_plain(m)]


def _replaced(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules whose ``forward`` the fused forward does not call."""
    trunk = model.model
    yield from (model, trunk, trunk.norm, trunk.rotary_emb)
    for layer in trunk.layers:
        yield from (layer, layer.self_attn, layer.mlp)
        yield from (layer.input_layernorm, layer.post_attention_layernorm)
        for name in ("q_norm", "k_norm"):
            norm = getattr(layer.self_attn, name, None)
            if norm is not None:
                yield norm


def _linears(model: nn.Module) -> Iterator[nn.Module]:
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield from (attention.q_proj, attention.k_proj, attention.v_proj)
        yield from (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    yield model.lm_head


def _base_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    yield from _non_linear_weights(model)
    for module in plain_linears(model):
        yield from module.parameters(recurse=False)


def _non_linear_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the weights outside linear layers."""
    yield from model.model.embed_tokens.parameters()
    for module in _replaced(model):
        yield from module.parameters(recurse=False)
