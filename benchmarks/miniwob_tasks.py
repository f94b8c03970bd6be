"""Held-out success of each kind of MiniWoB++ page before, during and after RL.

Run:     python benchmarks/miniwob_tasks.py miniwob miniwob_screen --seeds 0 1 2
Table:   python benchmarks/miniwob_tasks.py --table
Writes:  benchmarks/results/miniwob/<recipe>_seed<n>.json. Every kind of page of the
         recipe is played ``--per-task`` times, sampled as in training, on the same
         unseen seeds in all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from examples import Clock, means

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.curricula.task_options import with_options
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.offline.demonstrations import demonstrations
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "miniwob"


def run(name: str, seed: int, per_task: int, every: int) -> dict[str, Any]:
    """Train a recipe with one seed; return the success of each kind of page."""
    recipe = load_recipe(name, [f"seed={seed}"])
    config = recipe.build_config()
    config.validate()
    kinds = list(dict.fromkeys(config.env_config["task"]))  # some may be there twice
    clock = Clock()
    config.resolved_model = prepare_language_model(config)
    record: dict[str, Any] = {"recipe": name, "seed": seed, "sft": clock.minutes()}
    record["random"] = random_success(config, kinds, per_task)
    config.evaluation(evaluation_interval=None, evaluation_config={})
    algo = config.build_algo()
    record["curve"] = [[0, evaluate(algo, kinds, per_task)]]
    print(name, seed, record["sft"], record["curve"][-1], flush=True)
    record["rl"] = dict.fromkeys(("wall_min", "cpu_min"), 0.0)
    record["training"] = []
    last = int(recipe.total_iterations)
    for iteration in range(1, last + 1):
        clock = Clock()
        found = algo.train()["env_runners"]
        record["training"].append(float(found["success_rate"]))
        for key, value in clock.minutes().items():
            record["rl"][key] += value
        if iteration % every == 0 or iteration == last:
            record["curve"].append([iteration, evaluate(algo, kinds, per_task)])
            print(iteration, record["curve"][-1], flush=True)
    algo.stop()
    return record


def evaluate(algo: Any, kinds: list[str], per_task: int) -> dict[str, float]:
    """Return the success of every kind of page on held-out seeds."""
    runner = local_runner(algo)
    found = {}
    for kind in kinds:
        tasks = held_out_tasks(algo.config, per_task)
        played = runner.sample(
            tasks=[with_options(task, {"task": kind}) for task in tasks], explore=True
        )
        runner.get_metrics()  # evaluation must not count as training
        found[kind] = means(played)["success"]
    return found


def random_success(config: Any, kinds: list[str], count: int) -> dict[str, float]:
    """Return the success of random actions on every kind of page."""
    found = {}
    for kind in kinds:
        lone = config.copy(copy_frozen=False)
        lone.env_config = {**config.env_config, "task": kind}
        played = demonstrations(lone.make_text_env, count, seed=1, mistake_rate=1.0)
        found[kind] = statistics.fmean(bool(d.success) for d in played)
    return found


def print_tables() -> None:
    """Print a table per recipe: kinds of pages, and the mean; every seed in a cell."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*_seed*.json")):
        record = json.loads(path.read_text())
        runs.setdefault(record["recipe"], []).append(record)
    for name, records in runs.items():
        points = [iteration for iteration, _ in records[0]["curve"]]
        print(f"\n{name}\n\n| page | random | " + " | ".join(map(str, points)) + " |")
        print("|---" * (2 + len(points)) + "|")
        for kind in (*records[0]["random"], "mean"):
            at = [cell([r["random"] for r in records[:1]], kind)]
            at += [
                cell([r["curve"][index][1] for r in records], kind)
                for index in range(len(points))
            ]
            print(f"| {kind} | {' | '.join(at)} |")
        for part in ("sft", "rl"):
            shown = [f"{r[part]['cpu_min']:.1f}" for r in records]
            wall = [f"{r[part]['wall_min']:.1f}" for r in records]
            print(f"{part}: {', '.join(shown)} CPU min, {', '.join(wall)} min")


def cell(found: list[dict[str, float]], kind: str) -> str:
    """Return the success on a kind of page, or its "mean" over all, by seed."""
    values = [
        statistics.fmean(f.values()) if kind == "mean" else f[kind] for f in found
    ]
    return ", ".join(f"{value:.2f}" for value in values)


def main() -> None:
    """Run the recipes, or print the tables of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--per-task", type=int, default=20)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_tables()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in args.recipes:
        for seed in args.seeds:
            record = run(name, seed, args.per_task, args.every)
            path = RESULTS / f"{name}_seed{seed}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
