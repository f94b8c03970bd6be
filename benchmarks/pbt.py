"""Comparison of population based training with the same settings held fixed.

Run:     python benchmarks/pbt.py --seeds 0 1 2
Table:   python benchmarks/pbt.py --table
Writes:  benchmarks/results/pbt/seed<n>.json. Both arms train the four learning rates of
         the recipe sweep_pbt for as many iterations; in one, the worst member copies
         the best and changes its rate. Held-out success is RLlib's evaluation after the
         last iteration, 200 tasks, sampled. PBT's member is the one with the highest
         training return at the end, as a user would take it.
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
os.environ.setdefault("RAY_worker_niceness", "0")

import numpy as np

from rllib_llm.callbacks.result_keys import EVAL_SUCCESS, RETURN
from rllib_llm.cli.session import configure_output, ray_session
from rllib_llm.recipes import load_recipe
from rllib_llm.recipes.run_stages import prepare
from rllib_llm.recipes.tuning import make_tuner, seed_search
from rllib_llm.runs import read_run
from rllib_llm.runs.report import changes_of
from rllib_llm.runs.seed_statistics import mean_interval

RESULTS = Path(__file__).parent / "results" / "pbt"
ARMS = {"pbt": [], "fixed": ["tune.scheduler=null", "tune.max_concurrent_trials=1"]}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    configure_output(verbose=False)
    for seed in args.seeds:
        RESULTS.mkdir(parents=True, exist_ok=True)
        with ray_session():
            record = {arm: run(arm, seed) for arm in ARMS}
        (RESULTS / f"seed{seed}.json").write_text(json.dumps(record, indent=1) + "\n")
    if args.table:
        print_table()


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm and return its members."""
    recipe = load_recipe("sweep_pbt", [f"seed={seed}", *ARMS[arm]])
    recipe.validate()
    config = prepare(recipe)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as storage:
        seed_search(recipe)
        tuner = make_tuner(recipe, storage, config=config, run_name="run", callbacks=[])
        results = tuner.fit()
        if results.errors:
            raise results.errors[0]
        members = [member(trial) for trial in read_run(Path(storage, "run")).trials]
    seconds = time.perf_counter() - started
    print(arm, seed, f"{seconds:.0f} s", members, flush=True)
    return {"seconds": seconds, "members": members}


def member(trial: Any) -> dict[str, Any]:
    """Return the success of a trial and its learning rates."""
    return {
        "lr": trial.params["lr"],
        "changes": changes_of(trial),
        "return": trial.last(RETURN),
        "success": trial.last(EVAL_SUCCESS),
        "iterations": trial.iterations,
    }


def print_table() -> None:
    """Print the Markdown table of everything in the results folder."""
    records = [json.loads(p.read_text()) for p in sorted(RESULTS.glob("seed*.json"))]
    columns: dict[str, list[float]] = {
        "PBT, member with the best return": [],
        "fixed, median of the four": [],
        "fixed, the one with the best return": [],
        "fixed, worst of the four": [],
    }
    for record in records:
        fixed = [m["success"] for m in record["fixed"]["members"]]
        best = (chosen(record["pbt"]), np.median(fixed), chosen(record["fixed"]))
        for values, value in zip(columns.values(), (*best, min(fixed)), strict=True):
            values.append(float(value))
    print("| held-out success after 12 iterations | by seed | mean |\n|---|---|---|")
    for name, values in columns.items():
        print(f"| {name} | {', '.join(f'{v:.2f}' for v in values)} | {shown(values)} |")
    pbt, median, *_ = columns.values()
    difference = [a - b for a, b in zip(pbt, median, strict=True)]
    by_seed = ", ".join(f"{d:+.2f}" for d in difference)
    print(f"| PBT minus the median, paired by seed | {by_seed} | {shown(difference)} |")
    for arm in ARMS:
        minutes = np.mean([r[arm]["seconds"] for r in records]) / 60
        print(f"{arm}: {minutes:.1f} minutes per seed")


def chosen(arm: dict[str, Any]) -> float:
    """Return the held-out success of the member with the highest training return."""
    return max(arm["members"], key=lambda m: m["return"])["success"]


def shown(values: list[float]) -> str:
    """Return mean and 95 % t-interval over seeds."""
    found = mean_interval(values)
    half = "" if found.half is None else f" ± {found.half:.2f}"
    return f"{found.mean:.2f}{half}"


if __name__ == "__main__":
    main()
