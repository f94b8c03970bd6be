"""Steps of the optimiser: time, bytes beside what it keeps, agreement with torch's.

Needs torch alone, without ray.
"""

from __future__ import annotations

from typing import Any

import torch
from part import Part, run

from rllib_llm.algorithms.learner import adamw

LARGE, SMALL = 2**28, 2**16
STEPS = 3


def main(part: Part) -> None:
    """Write one row per dtype and place of the state."""
    elements = SMALL if part.is_small else LARGE
    for dtype in (torch.float32, torch.bfloat16):
        for offload in (False, True):
            measure(part, dtype, elements, offload=offload)


def measure(part: Part, dtype: torch.dtype, elements: int, *, offload: bool) -> None:
    """Write the row of a dtype."""
    weight = torch.nn.Parameter(torch.zeros(elements, dtype=dtype, device=part.device))
    weight.grad = torch.ones_like(weight)
    optimizer = adamw.MixedPrecisionAdamW([weight], lr=1e-3, offload=offload)
    optimizer.step()  # makes its state
    beside: Any = ""
    if part.accelerator is not None:
        before = part.accelerator.live_bytes
        part.accelerator.reset_peak()
        optimizer.step()
        beside = part.accelerator.peak_bytes - before
    seconds = part.seconds(lambda: [optimizer.step() for _ in range(STEPS)]) / STEPS
    part.row(
        dtype=str(dtype).removeprefix("torch."),
        offload=offload,
        elements=elements,
        ms=1e3 * seconds,
        bytes_beside=beside,
        bytes_planned=adamw.step_bytes([weight], offload=offload),
        gap_to_torch=gap_to_torch(part, dtype, offload),
    )


def gap_to_torch(part: Part, dtype: torch.dtype, offload: bool) -> float:
    """Return the largest difference of weights from torch's AdamW on the CPU."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1000, generator=generator).to(dtype)
    gradients = [torch.randn(1000, generator=generator).to(dtype) for _ in range(STEPS)]
    ours = torch.nn.Parameter(start.to(part.device))
    theirs = torch.nn.Parameter(start.float())
    optimizers = (
        adamw.MixedPrecisionAdamW([ours], lr=1e-2, offload=offload),
        torch.optim.AdamW([theirs], lr=1e-2),
    )
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.to(part.device), gradient.float()
        for optimizer in optimizers:
            optimizer.step()
    gap = ours.detach().cpu().float() - theirs.detach().to(dtype).float()
    return float(gap.abs().max())


if __name__ == "__main__":
    run(main, "torch")
