"""Speed of the Learner's update by ``micro_batch_tokens``, relative to the floor.

Run:  python benchmarks/micro_batches.py tiny

The standing workload, `fixed`; medians of ratios between consecutive measurements.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from floor import PART, Floor, Shape
from standing_workload import standing_config

from rllib_llm.cli.session import quiet_loggers

BUDGETS = (1024, 2048, 3072, 4096, 8192)


class Timed:
    """One algorithm whose updates are timed, in CPU seconds."""

    def __init__(self, size: str, budget: int) -> None:
        config = standing_config(size)
        config.training(micro_batch_tokens=budget)
        self._algo = config.build_algo()
        group, self._seconds = self._algo.learner_group, 0.0
        plain = group.update

        def update(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return plain(*args, **kwargs)
            finally:
                self._seconds = time.process_time() - start

        group.update = update

    def update(self) -> float:
        """Run one iteration and return the CPU seconds of its update."""
        self._algo.train()
        return self._seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=("tiny", "small"))
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    runs = {budget: Timed(args.size, budget) for budget in BUDGETS}
    floor, shape = Floor(standing_config(args.size).lm_model, torch.float32), Shape()
    ids, logps = floor.rollout(shape)
    inputs = ids, logps, torch.randn(shape.rows), shape.sampled_mask(), PART["float32"]
    for run in runs.values():
        run.update()
    found, shares = defaultdict(list), defaultdict(list)
    for _ in range(args.repeats):
        start = time.process_time()
        floor.update(*inputs)
        best = time.process_time() - start
        for budget, run in runs.items():
            found[budget].append(run.update())
            shares[budget].append(best / found[budget][-1])
    print("| micro_batch_tokens | update, CPU-s | share of floor |\n|---|---|---|")
    for budget in BUDGETS:
        seconds, share = (statistics.median(x[budget]) for x in (found, shares))
        print(f"| {budget} | {seconds:.2f} | {share:.2f} |")


if __name__ == "__main__":
    main()
