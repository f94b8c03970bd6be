"""Comparison of SFT settings before RL on a PettingZoo game.

Run:  python benchmarks/harbour_start.py --seeds 0 1 2
      python benchmarks/harbour_start.py --table

The game of harbour.py, the tiny model, GRPO, one policy for both agents. The arms
differ in SFT: the number of demonstrations and the share of random turns in them.
Results are in benchmarks/results/harbour_start/; the table is that of
docs/pettingzoo_walkthrough.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from harbour import Harbour

from rllib_llm import GRPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import episode_data
from rllib_llm.evaluation.teams import play_assignment

RESULTS = Path(__file__).parent / "results" / "harbour_start"
ITERATIONS, EPISODES, HELD_OUT = 25, 64, 256
# Games imitated, share of random turns.
ARMS = [(0, 1.0), (40, 0.0), (300, 1.0), (300, 0.8), (300, 0.5), (300, 0.2), (300, 0.0)]


def run(demonstrations: int, mistake_rate: float, seed: int) -> dict[str, Any]:
    """Run SFT and RL; return success on held-out games before and after RL."""
    config = (
        GRPOConfig()
        .environment(Harbour)
        .generation(max_new_tokens=6)
        .rollouts(episodes_per_iteration=EPISODES, group_size=8)
        .training(lr=3e-4)
        .sft(demonstrations=demonstrations, mistake_rate=mistake_rate)
        .debugging(seed=seed)
    )
    began = time.perf_counter()
    algo = config.build_algo()
    found = {"demonstrations": demonstrations, "mistake_rate": mistake_rate}
    found |= {"seed": seed, "before": success(algo)}
    for _ in range(ITERATIONS):
        algo.train()
    found |= {"after": success(algo), "seconds": time.perf_counter() - began}
    algo.stop()
    return found


def success(algo: Any) -> float:
    """Return the share of held-out games in which the pilot found the berth."""
    assignment = dict.fromkeys(Harbour.possible_agents, "default_policy")
    episodes = play_assignment(algo, assignment, HELD_OUT)
    return float(np.mean([bool(episode_data(e).success) for e in episodes]))


def path_of(demonstrations: int, mistake_rate: float, seed: int) -> Path:
    """Return the file of a run's results."""
    return RESULTS / f"{demonstrations}_{round(100 * mistake_rate)}_{seed}.json"


def print_table() -> None:
    """Print one row per SFT setting."""
    print("| demonstrations | random turns | success before | after | seeds |")
    print("|---|---|---|---|---|")
    for arm in ARMS:
        paths = [path for seed in range(9) if (path := path_of(*arm, seed)).is_file()]
        runs = [json.loads(path.read_text()) for path in paths]
        if runs:
            cells = [str(arm[0]), f"{arm[1]:g}"]
            for key in ("before", "after"):
                values = [r[key] for r in runs]
                mean, low, high = statistics.mean(values), min(values), max(values)
                cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
            print(f"| {' | '.join([*cells, str(len(runs))])} |")


def main() -> None:
    """Run the arms without results, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for arm in ARMS:
            if not path_of(*arm, seed).is_file():
                found = run(*arm, seed)
                path_of(*arm, seed).write_text(json.dumps(found, indent=1) + "\n")
                print(found, flush=True)


if __name__ == "__main__":
    main()
