"""Time of torch's attention in bfloat16 and in float32 on a CPU, with its backward.

Run:  OMP_NUM_THREADS=1 python benchmarks/attention_precision.py

The heads of SmolLM2-135M (9 query heads, 3 key-value heads of size 64); causal rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_REPEATS = 7


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in the dtype of the inputs."""
    return scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )


def in_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend in float32 and return the dtype of the inputs."""
    return attend(query.float(), key.float(), value.float()).to(query.dtype)


def measure(way: Callable[..., Tensor], rows: int, tokens: int) -> tuple[float, float]:
    """Return the milliseconds of forward and backward, medians."""
    inputs = [
        torch.randn(rows, heads, tokens, 64, dtype=torch.bfloat16, requires_grad=True)
        for heads in (9, 3, 3)
    ]
    forward, backward = [], []
    for _ in range(_REPEATS):
        start = time.process_time()
        out = way(*inputs)
        middle = time.process_time()
        out.backward(torch.ones_like(out))
        forward.append(middle - start)
        backward.append(time.process_time() - middle)
    return statistics.median(forward) * 1e3, statistics.median(backward) * 1e3


def main() -> None:
    """Print one table row per size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        "| rows | tokens | bfloat16, ms: forward, backward | in float32, ms | ratio of "
        "the sums |\n|---|---|---|---|---|"
    )
    for rows, tokens in (
        (32, 64),
        (32, 117),
        (16, 192),
        (16, 256),
        (8, 512),
        (4, 1024),
    ):
        low, high = measure(attend, rows, tokens), measure(in_float32, rows, tokens)
        cells = [f"{a:.0f}, {b:.0f}" for a, b in (low, high)]
        ratio = sum(high) / sum(low)
        print(f"| {rows} | {tokens} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
