"""Faster linear layers, norms and attention while a Learner updates on a CPU."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rllib_llm import compat

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.function import FunctionCtx
    from transformers import PreTrainedModel

_EXACT = 1e-5  # relative to the largest entry; real bfloat16 products are off by 1e-3
_PART = 2**16  # entries
_MOST_TOKENS = 192  # of a row; beyond, bfloat16 is as fast or faster
LOW_PRECISION = (torch.bfloat16, torch.float16)


@contextlib.contextmanager
def precision_in_force(name: str) -> Iterator[None]:
    """Set torch's global float32 matmul precision, and restore it afterwards.

    It is not left in force, because an engine in the same process decodes slower with
    "medium" on a CPU.

    Args:
        name: "highest", "high", "medium", or "auto": "highest", with faster linear
            layers by :func:`speed_up_linear_layers`.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if name == "auto" else name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def speed_up_linear_layers(module: nn.Module, device: torch.device) -> None:
    """Replace the forward of linear layers by a faster one with equal results.

    On CPUs "medium" uses oneDNN. That is faster than the default library for linear
    layers, slower for attention's small products (so it is not set globally here), and
    exact unless the CPU has matrix units for bfloat16, which is tested.

    Args:
        module: Module whose linear layers are changed in place.
        device: Device of the module; only on CPUs is anything changed.
    """
    if device.type != "cpu" or not _medium_is_exact():
        return
    for layer in module.modules():
        # Not subclasses: quantised or adapted layers have a forward of their own.
        if type(layer) is nn.Linear:
            layer.forward = functools.partial(_linear_forward, layer)


def _linear_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    is_float32 = x.dtype == layer.weight.dtype == torch.float32
    # A custom autograd function is not autocast.
    if is_float32 and not torch.is_autocast_enabled("cpu"):
        return _FastLinear.apply(x, layer.weight, layer.bias)
    return linear(x, layer.weight, layer.bias)


@functools.lru_cache(maxsize=1)
def _medium_is_exact() -> bool:
    """Return whether this machine's "medium" products agree with float64."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = left.double() @ right.double().T
    with precision_in_force("medium"):
        error = (linear(left, right) - exact).abs().max()
    return bool(error <= _EXACT * exact.abs().max())


class _FastLinear(torch.autograd.Function):
    """``x @ weight.T + bias`` with "medium" products, forward and backward."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        # The backward pass runs outside of the context manager, so it sets the
        # precision again.
        ctx.save_for_backward(x, weight)
        with precision_in_force("medium"):
            return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])  # [positions, outputs]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        with precision_in_force("medium"):
            return (
                (rows @ weight).view_as(x) if of_x else None,
                rows.T @ x.reshape(-1, x.shape[-1]) if of_weight else None,
                rows.sum(0) if of_bias else None,
            )


def speed_up_norms(module: nn.Module, device: torch.device) -> None:
    """Replace the forward of norms by a faster one with equal results.

    Transformers' norms are five small operations, each with a backward, and in low
    precision two conversions more; on a CPU these cost several times as much as the
    norm itself.

    Args:
        module: Module whose norms are changed in place, if a test shows that they
            compute ``weight * x / sqrt(mean(x^2) + eps)``.
        device: Device of the module; norms are changed only on a CPU.
    """
    if device.type != "cpu":
        return
    for layer in module.modules():
        if type(layer).__name__.endswith("RMSNorm") and _is_plain(layer):
            layer.forward = functools.partial(_norm_forward, layer, type(layer).forward)


def _is_plain(layer: nn.Module) -> bool:
    """Return whether a layer computes the plain norm, tested on a few numbers."""
    eps, weight = (
        getattr(layer, "variance_epsilon", None),
        layer._parameters.get("weight"),
    )
    if eps is None or weight is None or weight.ndim != 1:
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, len(weight), generator=generator, dtype=torch.float32)
    with torch.no_grad():
        exact = copy.deepcopy(layer).float()  # no rounding that would hide a formula
        expected = type(layer).forward(exact, x)
        error = (_FastNorm.apply(x, exact.weight, eps) - expected).abs().max()
    is_close = bool(error <= _EXACT * expected.abs().max())
    return is_close and weight.dtype in (torch.float32, *LOW_PRECISION)


def _norm_forward(layer: nn.Module, plain: Callable[..., Tensor], x: Tensor) -> Tensor:
    if x.dtype == layer.weight.dtype and not torch.is_autocast_enabled("cpu"):
        return _FastNorm.apply(x, layer.weight, layer.variance_epsilon)
    return plain(layer, x)


class _FastNorm(torch.autograd.Function):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis.

    In low precision ``x / sqrt(...)`` is computed in float32 and rounded, as in
    transformers.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _in_float32(x)
        squares = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
        scale = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        # Where x was converted, in the converted copy.
        normed = wide * scale if wide is x else wide.mul_(scale).to(x.dtype)
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, weight = ctx.saved_tensors
        if weight.dtype not in LOW_PRECISION:
            of_x, of_weight = _norm_gradients(grad, normed, scale, weight)
        else:
            # In parts whose float32 copies stay in the processor's cache.
            rows, factor = max(1, _PART // len(weight)), weight.float()
            tensors = (t.reshape(-1, t.shape[-1]) for t in (grad, normed, scale))
            parts = [
                _norm_gradients(g.float(), n.float(), s, factor)
                for g, n, s in zip(*(t.split(rows) for t in tensors), strict=True)
            ]
            of_x = torch.cat([x.to(grad.dtype) for x, _ in parts]).view_as(grad)
            of_weight = sum(w for _, w in parts).to(weight.dtype)
        return of_x, of_weight if ctx.needs_input_grad[1] else None, None


def _norm_gradients(
    grad: Tensor, normed: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a norm's input and of its weight."""
    product = grad * normed
    of_weight = product.reshape(-1, len(weight)).sum(0)
    # d/dx: grad * weight without its component along x, scaled.
    along = (product @ weight).div_(-len(weight)).unsqueeze(-1)
    return (grad * weight).addcmul_(normed, along).mul_(scale), of_weight


def _in_float32(x: Tensor) -> Tensor:
    """Return a tensor in float32 if it has low precision, else itself."""
    return x.float() if x.dtype in LOW_PRECISION else x


def float32_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute transformers' ``sdpa`` attention, in float32 where that is faster.

    Only for models on a CPU: there its backward pass takes several times as long in
    bfloat16 as in float32, up to a few hundred tokens. float32 also rounds less.

    Args:
        module: The attention layer.
        query: Queries. [B, heads, T, head_dim]
        key: Keys. [B, kv_heads, K, head_dim]
        value: Values. [B, kv_heads, K, head_dim]
        attention_mask: Mask, boolean or additive [B, 1, T, K]; None: causal attention.
        **kwargs: Further arguments of transformers' function.

    Returns:
        The attended values, in the dtype of ``sdpa``'s [B, T, heads, head_dim], and
        None for the weights.
    """
    dtype = query.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")  # in which it would be computed
    # Also without gradients, so that the first ratio of an update is 1.
    if dtype not in LOW_PRECISION or query.shape[2] > _MOST_TOKENS:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    # Autocast would convert them back.
    with torch.autocast("cpu", enabled=False):
        attended, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **kwargs
        )
    return attended.to(dtype), None


@contextlib.contextmanager
def float32_attention(models: Iterable[PreTrainedModel]) -> Iterator[None]:
    """Let models with ``sdpa`` attention use the above inside of the block."""
    with contextlib.ExitStack() as stack:
        for model in models:
            config = model.config.get_text_config()
            replaced = compat.attention_replaced(
                config, "sdpa", compat.FLOAT32_ATTENTION
            )
            stack.enter_context(replaced)
        yield


AttentionInterface.register(compat.FLOAT32_ATTENTION, float32_attention_forward)
AttentionMaskInterface.register(compat.FLOAT32_ATTENTION, sdpa_mask)
