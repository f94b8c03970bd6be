"""Pairs chosen by value and influence (DITS) beside value alone, at equal tokens.

Run:     python benchmarks/influence.py --seeds 0 1 2
Table:   python benchmarks/influence.py --table
Writes:  benchmarks/results/influence/<arm>_seed<n>.json, one per run.

The preset ``dits``, whose stages train bob and alice in turn. A stage of an arm ends
when its share of the sampled tokens is used, which include those of the validation
tasks. Held-out success, on the same tasks for all arms and sampled as in training, is
measured when half of a stage's tokens is used. The table is that of
docs/algorithms/pref.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from examples import evaluate
from learning_curves import by_seed, with_interval

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "influence"
MARKS, HELD_OUT = 2, 300
# Tokens of each stage of the preset.
BUDGETS = (20_000, 12_000, 12_000, 8_000)
# With influence, and as many tokens without it: more episodes make pairs.
ARMS: dict[str, list[str]] = {
    "value": [
        "training.influence=null",
        "rollouts.episodes_per_iteration=256",
    ],
    "influence": [],
    "influence_2": ["training.influence.weight=2.0"],
}


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm stage by stage; return its curve."""
    recipe = load_recipe("dits", [f"seed={seed}", *ARMS[arm]])
    start, checkpoint = time.process_time(), ""
    curve: list[dict[str, float]] = []
    iterations, shares = [], []
    for stage, budget in zip(recipe.stages, BUDGETS, strict=True):
        config = stage.build_config()
        config.evaluation(evaluation_interval=None, evaluation_config={})
        if checkpoint:
            config.initial_checkpoint = checkpoint
        algo = config.build_algo()
        if not curve:
            curve.append({"tokens": 0, **evaluate(algo, HELD_OUT)})
        shares.append(train(algo, budget, curve))
        iterations.append(len(shares[-1]))
        checkpoint = str(algo.save_to_path(tempfile.mkdtemp()))
        algo.stop()
    return {
        "arm": arm,
        "seed": seed,
        "iterations": iterations,
        "cpu_min": (time.process_time() - start) / 60,
        "shares": shares,
        "curve": curve,
    }


def train(
    algo: Any, budget: int, curve: list[dict[str, float]]
) -> list[list[float | None]]:
    """Train until so many tokens are used, and add to the curve.

    Returns:
        Of each iteration the shares of pairs of negative influence, and of those kept.
    """
    shares: list[list[float | None]] = []
    before, used, marks = curve[-1]["tokens"], 0, 0
    while used < budget:
        result = algo.train()
        used += int(result["env_runners"]["num_completion_tokens"])
        asked = result.get("influence", {})
        used += int(asked.get("num_tokens", 0))
        shares.append([asked.get(key) for key in ("negative_frac", "kept_frac")])
        if used >= (marks + 1) * budget / MARKS:
            marks = int(used * MARKS / budget)
            curve.append({"tokens": before + used, **evaluate(algo, HELD_OUT)})
    return shares


def print_table() -> None:
    """Print the arms: success before, after each stage, and the mean over tokens."""
    print(
        "| arm | before | after bob | after alice | all | mean over tokens "
        "| minus value, by seed | its mean (95 %) | CPU min |\n|" + 9 * "---|"
    )
    plain: dict[int, float] = {}
    for arm in ARMS:
        paths = sorted(RESULTS.glob(f"{arm}_seed*.json"))
        records = [json.loads(path.read_text()) for path in paths]
        if not records:
            continue
        cells = [
            by_seed([r["curve"][place]["success"] for r in records])
            for place in (0, MARKS, 2 * MARKS, -1)
        ]
        means = [mean_success(record["curve"]) for record in records]
        if arm == "value":
            plain = {r["seed"]: m for r, m in zip(records, means, strict=True)}
        gains = [m - plain[r["seed"]] for r, m in zip(records, means, strict=True)]
        print(
            f"| {arm} | {' | '.join(cells)} | {by_seed(means)} "
            f"| {', '.join(f'{gain:+.2f}' for gain in gains)} "
            f"| {with_interval(gains)} "
            f"| {np.median([r['cpu_min'] for r in records]):.1f} |"
        )


def mean_success(curve: list[dict[str, float]]) -> float:
    """Return the mean success over sampled tokens (trapezoids)."""
    tokens = [point["tokens"] for point in curve]
    success = [point["success"] for point in curve]
    return float(np.trapezoid(success, tokens) / tokens[-1])


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=[*ARMS])
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
            ends = [record["curve"][0]["success"], record["curve"][-1]["success"]]
            print(arm, seed, ends, record["iterations"], flush=True)


if __name__ == "__main__":
    main()
