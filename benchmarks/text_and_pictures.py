"""The same task as text and as pictures: held-out success at equal sampled tokens.

Run:     python benchmarks/text_and_pictures.py --seeds 0 1 2
Table:   python benchmarks/text_and_pictures.py --table
Writes:  benchmarks/results/text_and_pictures/<arm>_seed<n>.json

The recipe ``frozen_lake_pictures``, and the same recipe with ``frozen_lake-v0`` and the
tiny model of text: equal maps, demonstrations, settings and sizes of the text part.
Held-out success every five iterations is interpolated between sampled tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from examples import Clock, evaluate

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "text_and_pictures"
RECIPE, EVERY, HELD_OUT = "frozen_lake_pictures", 5, 200
SIZES = "{hidden_size: 128, intermediate_size: 384, initializer_range: 0.09}"
ARMS: dict[str, list[str]] = {
    "pictures": [],
    "text": [
        "env=frozen_lake-v0",
        f"language_model={{model: tiny, tiny: {SIZES}}}",
    ],
}


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed and return its curve."""
    recipe = load_recipe(RECIPE, [f"seed={seed}", *ARMS[arm]])
    config = recipe.build_config()
    config.validate()
    clock = Clock()
    config.resolved_model = prepare_language_model(config)
    sft = clock.minutes()
    config.evaluation(evaluation_interval=None, evaluation_config={})
    algo = config.build_algo()
    tokens, minutes = 0.0, 0.0
    curve = [[tokens, evaluate(algo, HELD_OUT)["success"]]]
    for iteration in range(1, int(recipe.total_iterations) + 1):
        clock = Clock()
        tokens += algo.train()["env_runners"]["num_completion_tokens"]
        minutes += clock.minutes()["cpu_min"]
        if iteration % EVERY == 0:
            curve.append([tokens, evaluate(algo, HELD_OUT)["success"]])
    algo.stop()
    return {"arm": arm, "seed": seed, "sft": sft, "rl_cpu_min": minutes, "curve": curve}


def print_table() -> None:
    """Print one row per arm: the median, and every seed, at equal sampled tokens."""
    runs = {
        arm: [json.loads(p.read_text()) for p in sorted(RESULTS.glob(f"{arm}_*.json"))]
        for arm in ARMS
    }
    last = min(r["curve"][-1][0] for each in runs.values() for r in each)
    points = np.linspace(0, last, 4)
    heads = [f"{point / 1000:.0f} thousand tokens" for point in points]
    print(f"| observation | {' | '.join(heads)} | SFT, CPU min | RL, CPU min |")
    print("|---" * (len(points) + 3) + "|")
    for arm, records in runs.items():
        cells = []
        for point in points:
            found = [
                float(np.interp(point, *np.transpose(r["curve"]))) for r in records
            ]
            seeds = ", ".join(f"{value:.2f}" for value in found)
            cells.append(f"{statistics.median(found):.2f} ({seeds})")
        built = [r["sft"]["cpu_min"] for r in records if r["sft"]["cpu_min"] > 0.1]
        cells.append(f"{statistics.median(built):.1f}" if built else "-")
        cells.append(f"{statistics.median(r['rl_cpu_min'] for r in records):.1f}")
        print(f"| {arm} | {' | '.join(cells)} |")


def main() -> None:
    """Run the arms, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arms", nargs="*", default=list(ARMS))
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
        for arm in args.arms:
            record = run(arm, seed)
            path = RESULTS / f"{arm}_seed{seed}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
            print(arm, seed, record["curve"], flush=True)


if __name__ == "__main__":
    main()
