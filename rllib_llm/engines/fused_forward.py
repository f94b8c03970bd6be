"""Fused forward pass of Llama, Mistral, Qwen2 and Qwen3, and of Qwen-VL's text parts.

It computes the same function of the same parameters as transformers' modules in fewer
operations: projections with the same input are one product, rotary positions come from
a table, residuals are added inside the matrix product, and after the last layer's keys
and values only the tokens whose logits are wanted are computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rllib_llm.engines.fused_layout import is_plain
from rllib_llm.engines.multi_lora_linear import PRECISE, MultiLoRALinear, pad_rows
from rllib_llm.engines.pass_rows import PassRows
from rllib_llm.engines.rotary_table import RotaryTable
from rllib_llm.engines.slot_cache import SlotCache

# Joined copies of weights are kept up to this total size. They save calls, which only
# matters for small models; for large models the memory would cost more than it saves.
_JOINED_BYTES = 64 * 2**20
_NO_PICTURES: Mapping[str, Any] = {}


class _Layer:
    """Modules of one decoder layer, and its adapters in all models."""

    def __init__(self, layers: Sequence[nn.Module], kind: str) -> None:
        self.attention, self.kind = layers[0].self_attn, kind
        self.input_norm = _Norm(layers[0].input_layernorm)
        self.mlp_norm = _Norm(layers[0].post_attention_layernorm)

        def joint(part: str, *names: str) -> MultiLoRALinear:
            return MultiLoRALinear(
                [[getattr(getattr(x, part), n) for x in layers] for n in names]
            )

        self.qkv = joint("self_attn", "q_proj", "k_proj", "v_proj")
        self.out = joint("self_attn", "o_proj")
        self.gate_up = joint("mlp", "gate_proj", "up_proj")
        self.down = joint("mlp", "down_proj")
        norms = [getattr(self.attention, n, None) for n in ("q_norm", "k_norm")]
        self.qk_norm = None if None in norms else _Norm(*norms)

    @property
    def norms(self) -> tuple[_Norm, ...]:
        """All norms of the layer."""
        both = self.input_norm, self.mlp_norm
        return both if self.qk_norm is None else (*both, self.qk_norm)

    @property
    def joints(self) -> tuple[MultiLoRALinear, ...]:
        """All joined products of the layer."""
        return self.qkv, self.out, self.gate_up, self.down


class _Norm:
    """RMS norm of the last axis.

    Args:
        *norms: Its module, or those of queries and of keys, which are normalised
            together.
    """

    def __init__(self, *norms: nn.Module) -> None:
        self._norms, self._eps = norms, norms[0].variance_epsilon
        self._weight = norms[0].weight
        self._scale: Tensor | None = None  # of the sum of squares, on CPUs

    def prepare(self, counts: Sequence[int]) -> None:
        """Compute everything that only depends on the weights.

        Args:
            counts: Number of query heads and of key heads.
        """
        if len(self._norms) > 1:
            pairs = zip(self._norms, counts, strict=True)
            self._weight = torch.cat([n.weight.expand(c, -1) for n, c in pairs])
        weight, size = self._weight, self._weight.shape[-1]
        # Four operations instead of the seven of torch's, which is fused on GPUs only.
        if weight.device.type == "cpu" and weight.dtype in PRECISE:
            self._scale = weight * size**0.5
            self._least = weight.new_tensor((size * self._eps) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised values; x: [..., size], or [N, heads, head_dim]."""
        if self._scale is not None:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            # hypot(|x|, sqrt(n eps)) = sqrt(n (mean of squares + eps))
            return (x / torch.hypot(length, self._least)).mul_(self._scale)
        if x.dtype in PRECISE and len(self._norms) == 1:
            return functional.rms_norm(x, x.shape[-1:], self._weight, self._eps)
        return self._weight * functional.rms_norm(x, x.shape[-1:], None, self._eps)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Tokens whose logits are wanted.

    Attributes:
        tokens: Their places among all tokens of the pass. int64 [M]
        rows: Their rows.
    """

    tokens: Tensor
    rows: PassRows


def _with_deeper_features(
    x: Tensor, placed: Mapping[str, Any], index: int, tokens: Tensor | None
) -> Tensor:
    """Return the outputs of a layer with the pictures' features for it added.

    Args:
        x: Outputs of the layer. [N, hidden]
        placed: Inputs with pictures.
        index: Index of the layer.
        tokens: Places of the outputs' tokens in the inputs; None: they are all.
            int64 [N]
    """
    mask = placed["visual_pos_masks"]
    added = x.new_zeros(len(mask), x.shape[-1])
    added[mask] = placed["deepstack_visual_embeds"][index].to(x.dtype)
    return x + (added if tokens is None else added[tokens])


class FusedForward:
    """Runs a model that :func:`~rllib_llm.engines.fused_layout.why_not_fused` accepts.

    Weights are read from the model's modules; the first forward joins some of them into
    copies. After any change of the weights a new FusedForward must be built.

    Args:
        model: The language model.
        others: Models with the same base weights and other adapters; each row is
            computed with the adapters of its own model.

    Attributes:
        called: Linear layers whose module is called instead of reading its weights,
            e.g. those with unusual adapters.
    """

    def __init__(self, model: nn.Module, others: Sequence[nn.Module] = ()) -> None:
        """Collect the layers; the first call computes the joined copies."""
        config, trunk = model.config, model.model
        kinds = getattr(config, "layer_types", None) or [""] * len(trunk.layers)
        self._trunk, self._head = trunk, model.lm_head
        self._norm = _Norm(trunk.norm)
        stacks = zip(trunk.layers, *(m.model.layers for m in others), strict=True)
        self._layers = [_Layer(*pair) for pair in zip(stacks, kinds, strict=True)]
        self._heads = config.num_attention_heads
        self._rotated = self._heads + config.num_key_value_heads
        self._head_dim = trunk.layers[0].self_attn.head_dim
        joints = [joint for layer in self._layers for joint in layer.joints]
        self.called = [linear for joint in joints for linear in joint.called]
        if not is_plain(self._head):
            self.called.append(self._head)
        self._rotary = RotaryTable(trunk)
        self._is_prepared = False

    def __call__(
        self,
        cache: SlotCache,
        token_ids: Tensor,
        positions: Tensor,
        rows: PassRows,
        wanted: Wanted | None = None,
        adapters: Tensor | None = None,
        placed: Mapping[str, Any] = _NO_PICTURES,
    ) -> Tensor:
        """Compute the logits after new tokens and extend the cache.

        Args:
            cache: Prepared with ``SlotCache.prepare``; receives the keys and values.
            token_ids: New tokens, row by row. int64 [N]
            positions: Their positions [N], or time, row and column [3, N].
            rows: Their rows.
            wanted: Tokens whose logits are wanted; None: all N.
            adapters: Index of the model whose adapters each token uses. int64 [N]
            placed: Inputs in place of the ids if there are pictures among the tokens
                (:meth:`PlacedFeatures.inputs`), of these tokens alone.

        Returns:
            Logits that follow the wanted tokens. [M, V]
        """
        if not self._is_prepared:
            self._prepare()
        x = placed.get("inputs_embeds")  # [N, hidden]
        if x is None:
            x = self._trunk.embed_tokens(token_ids)
        cos, sin = self._rotary(positions, cache.visible)
        tokens: Tensor | None = None
        for index, layer in enumerate(self._layers):
            query, new = self._project(layer, x, cos, sin, adapters)
            cache.write(new, index)
            if wanted is not None and index == len(self._layers) - 1:
                tokens, rows = wanted.tokens, wanted.rows
                x, query = x.index_select(0, tokens), query.index_select(0, tokens)
                adapters = None if adapters is None else adapters[tokens]
            attended = rows.attend(
                query, cache.read(index), layer.attention, layer.kind
            )
            x = layer.out.add(x, attended, adapters)
            gate, up = layer.gate_up(layer.mlp_norm(x), adapters).chunk(2, dim=-1)
            x = layer.down.add(x, functional.silu(gate) * up, adapters)
            if index < len(placed.get("deepstack_visual_embeds", ())):
                x = _with_deeper_features(x, placed, index, tokens)
        return self._head(pad_rows(self._norm(x)))[: len(x)]

    def _project(
        self,
        layer: _Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        adapters: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return rotated queries, and rotated keys with values.

        Their shapes are [N, heads, head_dim] and [N, 2, kv_heads, head_dim].
        """
        dim, rotated = self._head_dim, self._rotated
        qkv = layer.qkv(layer.input_norm(x), adapters).view(x.shape[0], -1, dim)
        part = qkv[:, :rotated]
        if layer.qk_norm is not None:
            part = layer.qk_norm(part)
        turned = part.roll(dim // 2, -1)
        # In low precision round after every operation, as transformers does.
        if x.dtype in PRECISE:
            torch.addcmul(part * cos, turned, sin, out=qkv[:, :rotated])
        else:
            qkv[:, :rotated] = part * cos + turned * sin
        heads = self._heads
        return qkv[:, :heads], qkv[:, heads:].unflatten(1, (2, rotated - heads))

    def _prepare(self) -> None:
        """Join the weights if they are small enough."""
        joints = [joint for layer in self._layers for joint in layer.joints]
        is_small = sum(joint.num_bytes for joint in joints) <= _JOINED_BYTES
        for joint in joints:
            joint.prepare(join=is_small)
        counts = (self._heads, self._rotated - self._heads)
        for norm in (self._norm, *(norm for x in self._layers for norm in x.norms)):
            norm.prepare(counts)
        self._is_prepared = True
