"""Faster float32 matrix products while a Learner updates."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

_EXACT = 1e-5  # relative to the largest entry; real bfloat16 products are off by 1e-3


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
        if type(layer) is nn.Linear:
            layer.forward = functools.partial(_fast_forward, layer)


def _fast_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    is_float32 = x.dtype == layer.weight.dtype == torch.float32
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
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with precision_in_force("medium"):
            return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])  # [positions, outputs]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        with precision_in_force("medium"):
            return (
                (rows @ weight).view_as(x) if of_x else None,
                rows.T @ x.reshape(-1, x.shape[-1]) if of_weight else None,
                rows.sum(0) if of_bias else None,
            )
