"""Judges of known accuracy: the asked reward against the true one over training.

Run:    python benchmarks/judges.py --seeds 0 1 2
Table:  python benchmarks/judges.py --table
Writes: benchmarks/results/judges/<judge>_seed<n>.json

The recipe ``judged``: GRPO sees the answers of a scripted judge alone, which is right
with probability 1, 0.9 or 0.7. Its errors are by chance (``random``), or depend on the
policy's texts (``by_text``), so that the policy can learn which texts are judged
wrongly. The asked reward and the true success of the same sampled episodes are
compared.
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

import torch
from examples import evaluate

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "judges"
ITERATIONS, HELD_OUT, SHOWN = 40, 200, (1, 10, 20, 40)
JUDGES = {
    "right": (1.0, "random"),
    "random_0.9": (0.9, "random"),
    "random_0.7": (0.7, "random"),
    "by_text_0.9": (0.9, "by_text"),
    "by_text_0.7": (0.7, "by_text"),
}


def run(judge: str, seed: int) -> dict[str, Any]:
    """Train one policy and return its curve."""
    accuracy, errors = JUDGES[judge]
    script = f"rollouts.assistants.judge.script={{name: outcome, accuracy: {accuracy}"
    recipe = load_recipe("judged", [f"seed={seed}", f"{script}, errors: {errors}}}"])
    config = recipe.build_config()
    config.evaluation(evaluation_interval=None, evaluation_config={})
    algo = config.build_algo()
    start = time.process_time()
    before, curve = evaluate(algo, HELD_OUT), []
    for iteration in range(1, ITERATIONS + 1):
        result = algo.train()
        answers = result["assistants"]["judge"]
        curve.append(
            {
                "iteration": iteration,
                "asked": float(answers["value_mean"]),
                "true": float(result["env_runners"]["success_rate"]),
            }
        )
    after = evaluate(algo, HELD_OUT)
    algo.stop()
    return {
        "judge": judge,
        "seed": seed,
        "before": before,
        "after": after,
        "cpu_min": (time.process_time() - start) / 60,
        "curve": curve,
    }


def records(judge: str) -> list[dict[str, Any]]:
    """Return the results of a judge, by seed."""
    paths = sorted(RESULTS.glob(f"{judge}_seed*.json"))
    return [json.loads(path.read_text()) for path in paths]


def print_table() -> None:
    """Print one row per judge: asked / true reward, every seed in a cell."""
    shown = [f"asked / true, iteration {i}" for i in SHOWN]
    print(f"| judge | {' | '.join(shown)} | held-out success | CPU min |")
    print("|---" * (len(SHOWN) + 3) + "|")
    for judge in JUDGES:
        runs = records(judge)
        if not runs:
            continue
        cells = [f"`{judge}`"]
        for iteration in SHOWN:
            points = [run["curve"][iteration - 1] for run in runs]
            cells.append(
                ", ".join(f"{p['asked']:.2f} / {p['true']:.2f}" for p in points)
            )
        cells.append(", ".join(f"{run['after']['success']:.2f}" for run in runs))
        cells.append(f"{statistics.median(run['cpu_min'] for run in runs):.1f}")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judges", nargs="*", default=list(JUDGES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        quiet_loggers()
        torch.set_num_threads(1)
        RESULTS.mkdir(parents=True, exist_ok=True)
        for seed in args.seeds:
            for judge in args.judges:
                record = run(judge, seed)
                path = RESULTS / f"{judge}_seed{seed}.json"
                path.write_text(json.dumps(record, indent=1) + "\n")
                last = record["curve"][-1]
                print(judge, seed, last, record["after"], record["cpu_min"], flush=True)
    print_table()


if __name__ == "__main__":
    main()
