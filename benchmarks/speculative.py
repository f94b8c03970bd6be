"""Rollouts of the standing workload with and without speculative decoding.

Run:  python benchmarks/speculative.py tiny [--variants fixed game] [--groups 8 1]

Every repeat samples the same tasks with each length of drafts, one after the other, in
CPU seconds of this process; the ratio is the median over repeats. Tokens and
log-probabilities are compared with those of the first length.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from standing_workload import standing_config

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.columns import TURN
from rllib_llm.data.episode_data import episode_data


def main() -> None:
    """Print one table row per variant, number of groups, and length of drafts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=("tiny", "small", "smollm"))
    parser.add_argument("--variants", nargs="+", default=["fixed", "game"])
    parser.add_argument("--groups", nargs="+", type=int, default=[8, 1])
    parser.add_argument("--drafts", nargs="+", type=int, default=[0, 8, 24])
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    print(
        "| workload | episodes | longest draft | sampled tok / CPU-s | relative to "
        "the first | tokens per pass and row | drafts accepted | episodes with other "
        "tokens | largest difference of log-probabilities |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for variant in args.variants:
        algos = {
            length: standing_config(args.size, variant, dtype=args.dtype)
            .generation(num_speculative_tokens=length)
            .build_algo()
            for length in args.drafts
        }
        # New tasks in every round: equal ones would be sampled again to the token.
        sampled = {
            length: (algo.env_runner, algo.config.build_task_source())
            for length, algo in algos.items()
        }
        for groups in args.groups:
            compare(f"{args.size}, {variant}", sampled, groups, args.repeats)
        for algo in algos.values():
            algo.stop()


def compare(
    name: str, sampled: dict[int, tuple[Any, Any]], groups: int, repeats: int
) -> None:
    """Measure pairs of EnvRunner and task source in turn and print their rows."""
    runs: dict[int, list[dict[str, float]]] = {length: [] for length in sampled}
    for repeat in range(repeats + 1):
        expected = None
        for length, (runner, source) in sampled.items():
            counts, turns = sample(runner, source.next_groups(groups))
            expected = expected or turns
            if repeat:  # the first turns teach the drafts
                runs[length].append(counts | difference(expected, turns))
    base = [run["tokens"] / run["seconds"] for run in runs[next(iter(runs))]]
    for length, found in runs.items():
        rates = [run["tokens"] / run["seconds"] for run in found]
        ratio = statistics.median(a / b for a, b in zip(rates, base, strict=True))
        total = {key: sum(run[key] for run in found) for key in found[0]}
        accepted = "-"
        if total["draft_tokens"]:
            accepted = f"{total['accepted_tokens'] / total['draft_tokens']:.0%}"
        gap = max(run["gap"] for run in found)
        print(
            f"| {name} | {8 * groups} | {length} | {statistics.median(rates):,.0f} "
            f"({min(rates):,.0f} to {max(rates):,.0f}) | {ratio:.2f} "
            f"| {total['tokens'] / total['rows']:.1f} | {accepted} "
            f"| {total['others']} of {8 * groups * repeats} | {gap:.0e} |",
            flush=True,
        )


def difference(expected: list[Any], found: list[Any]) -> dict[str, float]:
    """Return in how many episodes tokens differ, and the others' largest gap."""
    others, gap = 0, 0.0
    for one, other in zip(expected, found, strict=True):
        ids, logps = (
            [
                np.concatenate([getattr(t, name) for t in turns])
                for turns in (one, other)
            ]
            for name in ("action_ids", "action_logps")
        )
        if np.array_equal(*ids):
            gap = max(gap, float(np.abs(logps[0] - logps[1]).max()))
        else:
            others += 1
    return {"others": others, "gap": gap}


def sample(runner: Any, tasks: list[Any]) -> tuple[dict[str, float], list[Any]]:
    """Return counts and CPU seconds of one round of sampling, and its turns."""
    start = time.process_time()
    episodes = runner.sample(tasks=tasks)
    seconds = time.process_time() - start
    tokens = sum(episode_data(episode).num_sampled for episode in episodes)
    names = "decoded_tokens", "draft_tokens", "accepted_tokens"
    counts = {name: runner.metrics.peek(("engine", name)) for name in names}
    runner.get_metrics()  # resets them
    # A row of a pass samples one token beside its accepted draft.
    rows = counts["decoded_tokens"] - counts["accepted_tokens"]
    turns = [episode.get_extra_model_outputs(TURN) for episode in episodes]
    return {"seconds": seconds, "tokens": tokens, "rows": rows, **counts}, turns


if __name__ == "__main__":
    main()
