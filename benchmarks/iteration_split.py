"""Time shares of one iteration, and tokens per second.

Run:  python benchmarks/iteration_split.py frozen_lake_ppo frozen_lake_grpo

Each example starts from its SFT checkpoint, which the first run builds. The first
iteration is omitted, the next ones are averaged. Times are shares of the iteration.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

PARTS = ("env_runner_sampling_timer", "learner_update_timer", "synch_weights")


def main() -> None:
    """Print one table row per example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="+")
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args()
    quiet_loggers()
    print(
        "| example | s / iteration | sampling | update | sync | sampled tok/s of "
        "sampling | sequence tok/s of update | prompt tokens from cache | decoding "
        "batch |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in args.examples:
        print(row(name, args.iterations), flush=True)


def row(name: str, iterations: int) -> str:
    """Train a few iterations of ``name``; return the table row of their mean."""
    config = load_recipe(name).build_config()
    config.evaluation(evaluation_interval=None)
    algo = config.build_algo()
    algo.train()
    found = [measure(algo.train()) for _ in range(iterations)]
    algo.stop()
    mean = {key: float(np.mean([f[key] for f in found])) for key in found[0]}
    total = mean["total"]
    cells = [name, f"{total:.2f}"]
    cells += [f"{mean[part] / total:.0%}" for part in PARTS]
    cells += [
        f"{mean['sampled'] / mean[PARTS[0]]:,.0f}",
        f"{mean['sequence'] / mean[PARTS[1]]:,.0f}",
        f"{mean['cached'] / (mean['cached'] + mean['prefill']):.0%}",
        f"{mean['sampled'] / mean['forwards']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def measure(result: dict[str, Any]) -> dict[str, float]:
    """Return the times and counts of one iteration."""
    engine = result["env_runners"]["engine"]
    learner = result["learners"]["default_policy"]
    found = {part: float(result["timers"][part]) for part in PARTS}
    return found | {
        "total": float(result["time_this_iter_s"]),
        "sampled": float(engine["decoded_tokens"]),
        "prefill": float(engine["prefill_tokens"]),
        "cached": float(engine["cached_tokens"]),
        "forwards": float(engine["forwards"]),
        "sequence": float(learner["num_sequence_tokens"]),
    }


if __name__ == "__main__":
    main()
