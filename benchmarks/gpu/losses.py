"""Values and gradients of every loss component in float64, on the device and the CPU.

Needs torch alone, without ray.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from part import Part, run
from torch import Tensor

from rllib_llm.components.registry import COMPONENTS, BoundComponent, bind
from rllib_llm.losses import token_logps_and_entropy
from rllib_llm.losses.token_batch import TokenBatch, example_batch

KINDS = ("policy_loss", "loss_term", "token_advantage_transform")
SETTINGS = {"entropy_target": {"target": 0.5}}
MOST = 1e-10
"""Largest gap that rounding of float64 explains."""


def main(part: Part) -> None:
    """Write one row per component; fail if one differs."""
    worst = 0.0
    for kind in KINDS:
        for name in COMPONENTS[kind]:
            bound = bind(kind, {"name": name, **SETTINGS.get(name, {})})
            gap, largest = compare(lambda d, b=bound: of_component(b, d), part.device)
            worst = max(worst, gap / largest)
            part.row(kind=kind, name=name, largest=largest, gap=gap)
    gap, largest = compare(of_logits, part.device)
    part.row(kind="log-probabilities", name="token", largest=largest, gap=gap)
    if max(worst, gap / largest) > MOST:
        raise SystemExit(f"A component differs from the CPU by {worst:.1e}.")


def compare(
    compute: Callable[[torch.device], Tensor], device: torch.device
) -> tuple[float, float]:
    """Return the largest difference between both devices, and the largest number."""
    expected = compute(torch.device("cpu"))
    found = compute(device).cpu()
    gap = (found - expected).abs().max()
    return float(gap), max(float(expected.abs().max()), 1e-300)


def of_component(bound: BoundComponent, device: torch.device) -> Tensor:
    """Return a component's results and gradients on an example batch, in one row."""
    torch.manual_seed(0)
    batch = placed(example_batch(), device)
    found = bound.call(batch)
    result = found[0] if isinstance(found, tuple) else found
    inputs = [batch.logp, batch.entropy]
    if result.requires_grad:
        result.sum().backward()
    zero = torch.zeros_like(batch.logp)
    gradients = [zero if t.grad is None else t.grad for t in inputs]
    return torch.stack([result.detach().double(), *gradients]).flatten()


def placed(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """Return the batch in float64 on a device."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        moved = value.detach().to(device)
        return moved.double() if value.is_floating_point() else moved

    fields = {f.name: move(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    moved = TokenBatch(**fields)
    for name in ("logp", "entropy"):
        setattr(moved, name, getattr(moved, name).detach().requires_grad_())
    return moved


def of_logits(device: torch.device) -> Tensor:
    """Return log-probabilities, entropies and the gradient of random logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 1000, generator=generator, dtype=torch.float64)
    taken = torch.randint(0, 1000, (64,), generator=generator).to(device)
    logits = (5 * logits).to(device).requires_grad_()
    logps, entropies = token_logps_and_entropy(logits, taken, temperature=0.7)
    (logps.sum() + entropies.square().sum()).backward()
    assert logits.grad is not None
    parts = (logps.detach(), entropies.detach(), logits.grad.flatten())
    return torch.cat([p.double() for p in parts])


if __name__ == "__main__":
    run(main, "torch")
