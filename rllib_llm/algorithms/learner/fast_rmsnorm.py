"""Root-mean-square norms with fewer passes over memory while a Learner updates."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_EXACT = 1e-5  # relative to the largest entry


def speed_up_norms(module: nn.Module, device: torch.device) -> None:
    """Replace the forward of float32 norms by a faster one with equal results.

    Transformers' norms are five small operations, each with a backward; on a CPU these
    cost several times as much as the norm itself.

    Args: module: Module whose norms are changed in place, if a test shows that they
        compute ``weight * x / sqrt(mean(x^2) + eps)``. device: Device of the module;
        only on CPUs is anything changed.
    """
    if device.type != "cpu":
        return
    for layer in module.modules():
        if type(layer).__name__.endswith("RMSNorm") and _is_plain(layer):
            layer.forward = functools.partial(_fast_forward, layer, type(layer).forward)


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
        expected = type(layer).forward(layer, x).float()
        error = (_FastNorm.apply(x, weight.float(), eps) - expected).abs().max()
    return weight.dtype == x.dtype and bool(error <= _EXACT * expected.abs().max())


def _fast_forward(layer: nn.Module, plain: Any, x: Tensor) -> Tensor:
    is_float32 = x.dtype == layer.weight.dtype == torch.float32
    if is_float32 and not torch.is_autocast_enabled("cpu"):
        return _FastNorm.apply(x, layer.weight, layer.variance_epsilon)
    return plain(layer, x)


class _FastNorm(torch.autograd.Function):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, weight = ctx.saved_tensors
        product = grad * normed
        of_weight = product.reshape(-1, len(weight)).sum(0)
        # d/dx: grad * weight without its component along x, scaled.
        along = (product @ weight).div_(-len(weight)).unsqueeze(-1)
        of_x = (grad * weight).addcmul_(normed, along).mul_(scale)
        return of_x, of_weight if ctx.needs_input_grad[1] else None, None
