"""Tree search against best of n at equal tokens, after SFT alone.

Run:     python benchmarks/search.py --seeds 0 1 2
Table:   python benchmarks/search.py --table
Writes:  benchmarks/results/search/<example>_seed<n>.json, one per seed: the rows of
         ``rllib-llm evaluate --search`` for each number of simulations. All seeds and
         numbers use the same held-out tasks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.evaluation.search_summary import evaluate_search
from rllib_llm.evaluation.tree_search import MctsSettings
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "search"


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
        result = evaluate_search(algo, args.tasks, mcts=settings)
        rows = [dataclasses.asdict(row) for row in result.rows]
        record["runs"].append(
            {
                "settings": dataclasses.asdict(settings),
                "cpu_min": (time.process_time() - started) / 60,
                "rows": rows,
            }
        )
        shown = ", ".join(
            f"{r['name']} {r['success']['mean']:.3f} ({r['tokens']:.0f} tokens)"
            for r in rows
        )
        print(f"seed {seed}, {simulations} simulations: {shown}", flush=True)
    algo.stop()
    return record


def table(example: str) -> None:
    """Print the means over seeds, with the seeds in brackets."""
    files = sorted(RESULTS.glob(f"{example}_seed*.json"))
    records = [json.loads(file.read_text()) for file in files]
    print("| simulations | way | success | tokens per task | episodes |")
    print("|---|---|---|---|---|")
    for index, first in enumerate(records[0]["runs"]):
        for number, row in enumerate(first["rows"]):
            rows = [record["runs"][index]["rows"][number] for record in records]
            means = [r["success"]["mean"] for r in rows]
            each = ", ".join(f"{mean:.2f}" for mean in means)
            print(
                f"| {first['settings']['simulations']} | {row['name']} "
                f"| {statistics.mean(means):.2f} ({each}) "
                f"| {statistics.mean(r['tokens'] for r in rows):.0f} "
                f"| {statistics.mean(r['episodes'] for r in rows):.1f} |"
            )


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
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        table(args.example)
        return
    quiet_loggers()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        record = run(args, seed)
        path = RESULTS / f"{args.example}_seed{seed}.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
