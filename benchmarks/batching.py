"""Potential gain of two batching methods: mixed engine steps and packed rows.

Run:  OMP_NUM_THREADS=1 python benchmarks/batching.py tiny [small]

Both use the forward pass of the floor. The variants are measured alternately, in CPU
seconds:

- *mixed*: some rows decode, others prefill a new observation. Variants: a forward pass
  for each (as in the engine); one pass padded to the longest; one pass whose linear
  layers process all tokens in a row and whose attention is computed separately for each
  part.
- *packed*: training rows of unequal length. Variants: padded to the longest of the
  batch; sorted by length and split (as in the Learner); packed into one row with a
  block-diagonal mask; packed for the linear layers, with attention row by row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from floor import Floor
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

CONTEXT = 100  # tokens in the cache of each row
OBSERVED = 11  # new tokens of a row that has something to read


def mixed(floor: Floor, decoding: int, reading: int) -> dict[str, Callable[[], object]]:
    """Return the ways to do a step of ``decoding`` rows while others read."""
    p, rows = floor.parameters(), decoding + reading
    size = (floor.layers, 2, rows, floor.kv_heads, 256, floor.head_dim)
    cache = torch.zeros(size, dtype=floor.dtype)
    one = torch.randint(floor.vocab, (decoding, 1))
    many = torch.randint(floor.vocab, (reading, OBSERVED))
    padded = torch.randint(floor.vocab, (rows, OBSERVED))
    group = floor.heads // floor.kv_heads

    def separate() -> None:
        floor._step(many, CONTEXT, p, cache[:, :, decoding:])
        floor._step(one, CONTEXT, p, cache[:, :, :decoding])

    def flat_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = []
        for part, at, width in (
            (slice(decoding), slice(decoding), 1),
            (slice(decoding, None), slice(decoding, rows), OBSERVED),
        ):
            count = at.stop - (at.start or 0)
            stores, end = cache[layer, :, at], CONTEXT + width
            for store, new in zip(stores, (k[0, part], v[0, part]), strict=True):
                new = new.reshape(count, width, floor.kv_heads, -1).transpose(1, 2)
                store[:, :, CONTEXT:end] = new
            query = q[0, part].reshape(count, width, floor.kv_heads, group, -1)
            query = query.permute(0, 2, 3, 1, 4).flatten(2, 3)
            hidden = torch.arange(end) > CONTEXT + torch.arange(width)[:, None]
            mask = torch.zeros(hidden.shape, dtype=q.dtype)
            mask = mask.masked_fill_(hidden, -torch.inf).repeat(group, 1)
            seen = scaled_dot_product_attention(
                query, *(s[:, :, :end] for s in stores), mask, scale=1.0
            )
            seen = seen.unflatten(2, (group, width)).permute(0, 3, 1, 2, 4)
            out.append(seen.reshape(count * width, -1))
        return torch.cat(out)[None]

    tokens = torch.cat((one.flatten(), many.flatten()))[None]
    ends = torch.cat(
        (
            torch.arange(decoding),
            decoding + OBSERVED * torch.arange(1, reading + 1) - 1,
        )
    )

    def flat() -> Tensor:
        hidden = floor.forward(tokens, 0, p, flat_attention)[:, ends]
        return torch.nn.functional.linear(hidden, p["embed"])

    return {
        "two forwards": separate,
        "one, padded": lambda: floor._step(padded, CONTEXT, p, cache),
        "one, flat": flat,
    }


def packed(floor: Floor, lengths: list[int]) -> dict[str, Callable[[], object]]:
    """Return the ways to compute gradients of rows of these lengths."""
    floor._make_rope(1e4, max(2048, sum(lengths)))  # only the time counts here
    p, ordered = floor.parameters(), sorted(lengths)

    def train(ids: Tensor, attend: Callable[..., Tensor]) -> None:
        floor.optimizer.zero_grad()
        hidden = floor.forward(ids, 0, p, attend)
        logits = torch.nn.functional.linear(hidden, p["embed"])
        logits.float().logsumexp(-1).mean().backward(retain_graph=True)

    def rows(each: list[int]) -> Tensor:
        return torch.randint(floor.vocab, (len(each), max(each)))

    whole = torch.randint(floor.vocab, (1, sum(lengths)))
    owner = torch.repeat_interleave(torch.tensor(lengths))
    place = torch.arange(len(owner))
    apart = (owner[:, None] == owner) & (place[:, None] >= place)

    def blocks(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, apart, scale=1.0, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)

    def one_by_one(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(x.split(lengths, 1) for x in (q, k, v)), strict=True)
        return torch.cat([floor._causal(layer, *part) for part in parts], 1)

    def cut() -> None:
        for first in range(0, len(ordered), 8):
            train(rows(ordered[first : first + 8]), floor._causal)

    return {
        "padded": lambda: train(rows(lengths), floor._causal),
        "sorted and cut": cut,
        "one row, mask": lambda: train(whole, blocks),
        "one row, attention row by row": lambda: train(whole, one_by_one),
    }


def compare(title: str, ways: dict[str, Callable[[], object]], repeats: int) -> None:
    """Print the milliseconds of each way and its ratio to the first."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if repeat:  # the first is warm-up
                spent[name].append(time.process_time() - start)
    first = statistics.median(next(iter(spent.values())))
    cells = [
        f"{statistics.median(each) * 1e3:.1f} ({statistics.median(each) / first:.2f})"
        for each in spent.values()
    ]
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    from standing_workload import standing_config

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=("tiny", "small"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for size in args.sizes:
        floor = Floor(standing_config(size).lm_model, torch.float32)
        print(f"\n{size}, CPU ms (against the first way)\n")
        print("| step | two forwards | one, padded | one, flat |\n|---|---|---|---|")
        for decoding, reading in ((60, 4), (48, 16), (32, 32)):
            with torch.no_grad():
                title = f"{decoding} rows decode, {reading} read {OBSERVED} tokens"
                compare(title, mixed(floor, decoding, reading), 40)
        heads = packed(floor, [8, 8])
        print(f"\n| rows | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}")
        for low in (180, 60):
            lengths = torch.randint(low, 190, (32,)).tolist()
            title = f"32 of {low} to 189 tokens"
            compare(title, packed(floor, lengths), 5 if size == "tiny" else 2)


if __name__ == "__main__":
    main()
