"""Tree search against best of n, after SFT alone.

Run:     python benchmarks/search.py --seeds 0 1 2
         python benchmarks/search.py --seeds 0 1 2 --equal episodes
Table:   python benchmarks/search.py --table [--equal episodes]
Writes:  benchmarks/results/search/<example>_seed<n>.json, one per seed: the rows of
         ``rllib-llm evaluate --search`` for each number of simulations, and which tasks
         were solved. All seeds and numbers use the same held-out tasks. With
         ``--equal episodes`` best of n has as many episodes as a place of the tree has
         simulations (<example>_episodes_seed<n>.json), otherwise the tokens of the
         tree search.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.evaluation.search_summary import evaluate_search
from rllib_llm.evaluation.success_statistics import Estimate, share_of_tasks
from rllib_llm.evaluation.tree_search import MctsSettings
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "search"
TOKENS, EPISODES = "tokens", "episodes"


def run(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Search with the policy that SFT leaves; return the record."""
    overrides = [f"seed={seed}", "env_runners.num_envs_per_env_runner=64"]
    config = load_recipe(args.example, overrides).stages[0].build_config()
    config.evaluation(evaluation_interval=None, evaluation_config={})
    algo = config.build_algo()
    record: dict[str, Any] = {
        "example": args.example,
        "seed": seed,
        "tasks": args.tasks,
        "equal": args.equal,
        "runs": [],
    }
    for simulations in args.simulations:
        settings = MctsSettings(
            simulations=simulations,
            width=args.width,
            rule=args.rule,
            exploration=args.exploration,
            gamma=args.gamma,
        )
        started = time.process_time()
        episodes = simulations if args.equal == EPISODES else None
        result = evaluate_search(algo, args.tasks, mcts=settings, episodes=episodes)
        rows = [dataclasses.asdict(row) for row in result.rows]
        record["runs"].append(
            {
                "settings": dataclasses.asdict(settings),
                "cpu_min": (time.process_time() - started) / 60,
                "rows": rows,
                "solved": {n: solved(o) for n, o in result.outcomes.items()},
            }
        )
        shown = ", ".join(
            f"{r['name']} {r['success']['mean']:.3f} ({r['tokens']:.0f} tokens)"
            for r in rows
        )
        print(f"seed {seed}, {simulations} simulations: {shown}", flush=True)
    algo.stop()
    return record


def solved(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the share of each task's episodes that solved it, by its number."""
    by_task: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.success is not None:
            by_task.setdefault(str(outcome.task), []).append(float(outcome.success))
    return {task: statistics.mean(values) for task, values in by_task.items()}


def over_tasks_and_seeds(of_seeds: Sequence[dict[str, float]]) -> Estimate:
    """Return the mean success with its interval; the seeds are samples of each task.

    Tasks are the units, since all seeds play the same ones. Three seeds are too few to
    be units themselves: by how much others would differ from all of these is left out.

    Args:
        of_seeds: For each seed the successes by task, in [0, 1].
    """
    tasks = sorted({task for each in of_seeds for task in each})
    return share_of_tasks([[s[task] for s in of_seeds if task in s] for task in tasks])


def table(args: argparse.Namespace) -> list[str]:
    """Return the lines of the table: means over seeds, intervals, and the seeds."""
    files = sorted(args.results.glob(f"{stem(args)}_seed*.json"))
    records = [json.loads(file.read_text()) for file in files]
    lines = [
        "| simulations | way | success | 95 % interval | tokens per task | episodes |",
        "|---|---|---|---|---|---|",
    ]
    for index, first in enumerate(records[0]["runs"] if records else ()):
        runs = [record["runs"][index] for record in records]
        for number, row in enumerate(first["rows"]):
            rows = [run["rows"][number] for run in runs]
            means = [r["success"]["mean"] for r in rows]
            each = ", ".join(f"{mean:.2f}" for mean in means)
            interval = "-"  # older records do not say which tasks were solved
            if all("solved" in run for run in runs):
                found = over_tasks_and_seeds([r["solved"][row["name"]] for r in runs])
                interval = f"{found.low:.2f} to {found.high:.2f}"
            lines.append(
                f"| {first['settings']['simulations']} | {row['name']} "
                f"| {statistics.mean(means):.2f} ({each}) | {interval} "
                f"| {statistics.mean(r['tokens'] for r in rows):.0f} "
                f"| {statistics.mean(r['episodes'] for r in rows):.1f} |"
            )
    return lines


def stem(args: argparse.Namespace) -> str:
    """Return the beginning of the names of an example's result files."""
    return args.example + ("_episodes" if args.equal == EPISODES else "")


def main() -> None:
    """Run the seeds, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--example", default="frozen_lake_grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--simulations", type=int, nargs="+", default=[2, 4, 8, 32])
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--rule", default="uct")
    parser.add_argument("--exploration", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--equal", choices=(TOKENS, EPISODES), default=TOKENS)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(args)))
        return
    quiet_loggers()
    args.results.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        record = run(args, seed)
        path = args.results / f"{stem(args)}_seed{seed}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
