"""Learning curve on the variant ``game`` of the standing workload.

Run:  python benchmarks/standing_learning.py tiny --updates 100 --seeds 0 1 2

Prints success by updates and CPU seconds without SFT, the table of docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from standing_workload import standing_config

from rllib_llm.cli.session import quiet_loggers


def main() -> None:
    """Print one table row per seed and block of updates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=("tiny", "small"))
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    print("| seed | updates | CPU-s | success | turns |\n|---|---|---|---|---|")
    for seed in args.seeds:
        for row in learn(args.size, seed, args.updates, args.every):
            print(f"| {seed} | {row} |", flush=True)


def learn(size: str, seed: int, updates: int, every: int) -> Iterator[str]:
    """Train and yield the mean of every block of updates.

    Success is that of the sampled training episodes, 64 per update.
    """
    algo = standing_config(size, "game", seed=seed).build_algo()
    start, block = time.process_time(), []
    for update in range(1, updates + 1):
        found = algo.train()["env_runners"]
        block.append((found["success_rate"], found["turns_mean"]))
        if update % every == 0 or update == updates:
            success, turns = np.mean(block, axis=0)
            block = []
            seconds = time.process_time() - start
            yield f"{update} | {seconds:.0f} | {success:.2f} | {turns:.2f}"
    algo.stop()


if __name__ == "__main__":
    main()
