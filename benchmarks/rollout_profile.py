"""Profile of rollouts: parts, attention, floor rates over turns, and threads.

Run:  python benchmarks/rollout_profile.py parts attention floor_turns
      OMP_NUM_THREADS=2 python benchmarks/rollout_profile.py threads

The standing workload, tiny; the tables of docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from floor import Floor, Shape
from floor import measure as measure_floor
from standing_workload import standing_config
from torch.nn.functional import scaled_dot_product_attention

from rllib_llm.cli.session import quiet_loggers


def parts() -> None:
    """Print the shares of a rollout, in CPU seconds of the main thread."""
    print(
        "| workload | forward | sampling | bookkeeping | prefill | outside the engine "
        "| tokens |\n|---|---|---|---|---|---|---|"
    )
    for variant in ("fixed", "game"):
        algo = standing_config("tiny", variant).build_algo()
        engine, spent = algo.env_runner.engine, defaultdict(float)
        for owner, name in (
            (engine, "step"),
            (engine, "_prefill"),
            (engine, "_decode"),
            (engine._runner, "forward"),
        ):
            setattr(owner, name, timed(spent, name, getattr(owner, name)))
        draw = type(engine._running).draw
        type(engine._running).draw = timed(spent, "draw", draw)
        algo.sample_groups(8)
        spent.clear()
        start = time.thread_time()
        for _ in range(4):
            episodes = algo.sample_groups(8)
        total = time.thread_time() - start
        type(engine._running).draw = draw
        shares = {
            "forward": spent["_decode/forward"],
            "sampling": spent["_decode/draw"],
            "bookkeeping": spent["_decode"]
            - spent["_decode/forward"]
            - spent["_decode/draw"],
            "prefill": spent["_prefill"],
            "around": total - spent["step"],
        }
        tokens = sum(e.custom_data["llm"].num_sampled for e in episodes)
        cells = [f"{value / total:.0%}" for value in shares.values()]
        print(f"| {variant} | {' | '.join(cells)} | {tokens:,} |", flush=True)
        algo.stop()


_STACK: list[str] = []


def timed(spent: dict[str, float], name: str, call: Callable[..., Any]) -> Any:
    """Add the CPU seconds of ``call`` to its name, and to that of its caller."""

    def timing(*args: Any, **kwargs: Any) -> Any:
        key = f"{_STACK[-1]}/{name}" if _STACK else name
        _STACK.append(name)
        start = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            seconds = time.thread_time() - start
            _STACK.pop()
            for entry in {name, key}:
                spent[entry] += seconds

    return timing


def attention() -> None:
    """Print the time of one layer's attention in a decoding step, in ms."""
    print("| rows | keys | sdpa, mask | sdpa | matrix products | GB/s of sdpa |")
    print("|---|---|---|---|---|---|")
    heads, kv_heads, dim, columns = 4, 2, 32, 256
    for rows in (8, 32, 64):
        for keys in (64, 128, 192):
            stores = [torch.randn(rows, kv_heads, columns, dim) for _ in range(2)]
            k, v = (store[:, :, :keys] for store in stores)
            q = torch.randn(rows, kv_heads, heads // kv_heads, dim)
            mask = torch.zeros(rows, 1, 1, keys)

            def plain(q: Any = q, k: Any = k, v: Any = v, mask: Any = mask) -> Any:
                return torch.softmax(q @ k.mT * dim**-0.5 + mask, -1) @ v

            def masked(q: Any = q, k: Any = k, v: Any = v, mask: Any = mask) -> Any:
                return scaled_dot_product_attention(q, k, v, mask)

            def bare(q: Any = q, k: Any = k, v: Any = v) -> Any:
                return scaled_dot_product_attention(q, k, v)

            times = [milliseconds(f) for f in (masked, bare, plain)]
            rate = 2 * 4 * rows * kv_heads * keys * dim / times[1] / 1e6
            cells = [f"{t:.3f}" for t in times]
            print(f"| {rows} | {keys} | {' | '.join(cells)} | {rate:.1f} |", flush=True)


def milliseconds(call: Callable[[], Any], count: int = 200) -> float:
    """Return the median CPU time of a call."""
    found = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(count):
            call()
        found.append((time.thread_time() - start) / count * 1e3)
    return statistics.median(found)


def floor_turns() -> None:
    """Print the throughput of the floor by the number of turns."""
    print("| turns | floor, rollout: tok / CPU-s | against 2 |\n|---|---|---|")
    floor = Floor(standing_config("tiny").lm_model, torch.float32)
    first = None
    for turns in (2, 5, 20):
        runs = [measure_floor(floor, Shape(turns=turns), 8) for _ in range(4)][1:]
        rate = statistics.median(r.sampled / r.rollout_s for r in runs)
        first = first or rate
        print(f"| {turns} | {rate:,.0f} | {rate / first:.2f} |", flush=True)


def threads() -> None:
    """Print wall and CPU time of an iteration with this process's threads."""
    count = int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(count)
    print("| model | threads | wall, s | CPU, s |\n|---|---|---|---|")
    for size, repeats in (("tiny", 5), ("small", 2)):
        algo = standing_config(size).build_algo()
        algo.train()
        walls, spent = [], []
        for _ in range(repeats):
            start = time.perf_counter(), time.process_time()
            algo.train()
            walls.append(time.perf_counter() - start[0])
            spent.append(time.process_time() - start[1])
        cells = [f"{statistics.median(x):.2f}" for x in (walls, spent)]
        print(f"| {size} | {count} | {' | '.join(cells)} |", flush=True)
        algo.stop()


TABLES = {f.__name__: f for f in (parts, attention, floor_turns, threads)}


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    for name in args.tables:
        TABLES[name]()
        print()


if __name__ == "__main__":
    main()
