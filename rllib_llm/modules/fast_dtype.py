"""The dtype in which this machine multiplies matrices fastest."""

from __future__ import annotations

import functools
import time
from typing import Literal

import torch
from torch.nn.functional import linear

_SPEEDUP = 1.5  # of bfloat16, to be worth its rounding
_ROWS, _IN, _OUT = 256, 1536, 576  # a layer of a model of 100 million parameters


def resolve_dtype(
    name: Literal["float32", "bfloat16", "auto"], num_gpus: float = 0
) -> Literal["float32", "bfloat16"]:
    """Return ``name``, or for "auto" the dtype to use on this machine.

    Args:
        name: "auto", or the name of a dtype.
        num_gpus: GPUs of each Learner; with any, "auto" is "bfloat16".

    Returns:
        "float32" or "bfloat16" for "auto".
    """
    if name != "auto":
        return name
    if num_gpus > 0 or bfloat16_speedup() >= _SPEEDUP:
        return "bfloat16"
    return "float32"


@functools.lru_cache(maxsize=1)
def bfloat16_speedup() -> float:
    """Return how many times faster bfloat16 products are than float32, on the CPU.

    It is measured: CPUs with the same instructions differ. On one with AVX-512's for
    bfloat16 it was 4, on another 0.6; without them 0.3.
    """
    seconds = {d: _seconds(d) for d in (torch.float32, torch.bfloat16)}
    return seconds[torch.float32] / seconds[torch.bfloat16]


def _seconds(dtype: torch.dtype) -> float:
    """Return the shortest time of a linear layer, in seconds."""
    x, weight = torch.ones(_ROWS, _IN, dtype=dtype), torch.ones(_OUT, _IN, dtype=dtype)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        linear(x, weight)
        times.append(time.perf_counter() - started)
    # The first call prepares the weights; the others may be interrupted.
    return min(times)
