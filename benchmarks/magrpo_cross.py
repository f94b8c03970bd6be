"""Comparison of MAGRPO's two advantage estimators on a vote of three agents.

Run:     python benchmarks/magrpo_cross.py --seeds 0 1 2
Table:   python benchmarks/magrpo_cross.py --table
Writes:  benchmarks/results/magrpo_cross/<start>_<joint>_<seed>.json, one per run: the
         share of right votes in each iteration, and the cost of repeated games. The
         table is that of docs/multi_agent_advantages.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "magrpo_cross"
# What the votes begin with: overrides of the recipe, and the iterations of the table.
STARTS: dict[str, list[str]] = {
    "random": ["sft.mistake_rate=1.0", "rollouts.group_size=4"],
    "taught": [],
}
SHOWN = {"random": ((1, 5), (26, 30)), "taught": ((6, 10), (26, 30))}
JOINTS = ("cross", "aligned")
REWARD = 1.5  # for a right vote, to three agents together


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", nargs="*", choices=STARTS, default=[*STARTS])
    parser.add_argument("--joints", nargs="*", choices=JOINTS, default=[*JOINTS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for start in args.starts:
            for joint in args.joints:
                record = run(start, joint, seed)
                path = RESULTS / f"{start}_{joint}_{seed}.json"
                path.write_text(json.dumps(record) + "\n")
                print(start, joint, seed, record["right"][-1], flush=True)


def run(start: str, joint: str, seed: int) -> dict[str, Any]:
    """Train once; return the share of right votes by iteration."""
    advantages = f"training.advantage_estimator=[{{name: magrpo, joint: {joint}}}]"
    recipe = load_recipe("magrpo_cross", [f"seed={seed}", advantages, *STARTS[start]])
    algo = recipe.build_config().build_algo()
    right, seconds, games = [], [], []
    for _ in range(recipe.total_iterations):
        result = algo.train()
        right.append(float(result["env_runners"]["episode_return_mean"]) / REWARD)
        if joint == "cross":
            seconds.append(float(result["replay_s"]))
            games.append(float(result["replayed_games"]))
    algo.stop()
    return {"right": right, "replay_s": seconds, "replayed_games": games}


def print_table() -> None:
    """Print the Markdown table of everything in the results folder."""
    print("| start | iterations | cross | aligned |")
    print("|---|---|---|---|")
    replays = []
    for start in STARTS:
        for first, last in SHOWN[start]:
            cells = []
            for joint in JOINTS:
                paths = sorted(RESULTS.glob(f"{start}_{joint}_*.json"))
                records = [json.loads(path.read_text()) for path in paths]
                shares = [np.mean(r["right"][first - 1 : last]) for r in records]
                cells.append(", ".join(f"{share:.2f}" for share in shares))
                replays += [s for r in records for s in r["replay_s"]]
            print(f"| {start} | {first}-{last} | {' | '.join(cells)} |")
    if replays:
        low, high = np.nanquantile(replays, [0.05, 0.95])
        print(
            f"\nPlaying games again: {low:.2f} to {high:.2f} s of an iteration (90 %)"
        )


if __name__ == "__main__":
    main()
