"""Self-play on Kuhn poker and tic-tac-toe, with and without frozen opponents.

Run:     python benchmarks/selfplay.py --seeds 0 1 2 [--variants pool mirror]
         python benchmarks/selfplay.py --seeds 0 1 2 --variants tic_tac_toe
Table:   python benchmarks/selfplay.py --table
Writes:  benchmarks/results/selfplay/<variant>_<seed>.json, one per run. Exploitability
         is that of the sampling policy (temperature 1), computed exactly by OpenSpiel:
         0.458 for the uniform policy, 0 in a Nash equilibrium. Tic-tac-toe has too many
         histories (549,946), so the mean return against the random policy is measured
         instead, and exploitability if the policy observes only the board (0.960 for
         the uniform policy). Variants that begin with board_ are those of
         tic_tac_toe_exploiter.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "selfplay"
FREE = "training.ref_kl_coeff=0"
VARIANTS = {
    "pool": [],
    "mirror": ["league.opponents=mirror"],
    "pool_free": [FREE],
    "mirror_free": [FREE, "league.opponents=mirror"],
}
TIC_TAC_TOE = {
    "tic_tac_toe": [],
    "tic_tac_toe_mirror": ["league.opponents=mirror"],
    "board_exploiter": [],
    "board_pool": ["league.exploiter_fraction=0"],
    "board_mirror": ["league.exploiter_fraction=0", "league.opponents=mirror"],
}
# Two-sided 95 % quantile of Student's t for two degrees of freedom.
T95 = 4.303


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--variants", nargs="*", choices=[*VARIANTS, *TIC_TAC_TOE], default=[*VARIANTS]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for variant in args.variants:
            train = run_tic_tac_toe if variant in TIC_TAC_TOE else run
            record = train(variant, seed, args.every)
            path = RESULTS / f"{variant}_{seed}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")


def run(variant: str, seed: int, every: int) -> dict[str, Any]:
    """Train with one seed and return the curve of exploitability."""
    recipe = load_recipe("kuhn_poker", [f"seed={seed}", *VARIANTS[variant]])
    algo = recipe.build_config().build_algo()
    curve, cpu = [point(algo, 0)], time.process_time()
    for iteration in range(1, recipe.total_iterations + 1):
        result = algo.train()
        if iteration % every == 0:
            curve.append(point(algo, iteration))
            turns = result["env_runners"]
            curve[-1]["invalid"] = float(turns["invalid_action_frac"])
            print(variant, seed, curve[-1], flush=True)
    record = {
        "variant": variant,
        "seed": seed,
        "cpu_s": time.process_time() - cpu,
        "snapshots": len(algo.matchmaker.ratings.ranking()[1:]),
        "curve": curve,
    }
    algo.stop()
    return record


def run_tic_tac_toe(variant: str, seed: int, every: int) -> dict[str, Any]:
    """Train with one seed; return returns against random play, and exploitability."""
    overrides = [f"seed={seed}", "evaluation.evaluation_duration=400"]
    is_board = variant.startswith("board")
    name = "tic_tac_toe_exploiter" if is_board else "tic_tac_toe"
    recipe = load_recipe(name, [*overrides, *TIC_TAC_TOE[variant]])
    algo = recipe.build_config().build_algo()
    curve, cpu = [against_random(algo, 0)], time.process_time()
    for iteration in range(1, recipe.total_iterations + 1):
        algo.train()
        if iteration % every == 0:
            curve.append(against_random(algo, iteration))
            print(variant, seed, curve[-1], flush=True)
    cpu = time.process_time() - cpu
    algo.stop()
    return {"variant": variant, "seed": seed, "cpu_s": cpu, "curve": curve}


def against_random(algo: Any, iteration: int) -> dict[str, Any]:
    """Play held-out games against random legal moves, both players in turn."""
    found = algo.evaluate()["env_runners"]["module_episode_return_mean"]
    given = {"iteration": iteration, "return": float(found["default_policy"])}
    is_by_board = algo.config.history == "latest"
    return given | (point(algo, iteration) if is_by_board else {})


def point(algo: Any, iteration: int) -> dict[str, Any]:
    """Measure the current policy."""
    found = algo.measure_exploitability()
    return {
        "iteration": iteration,
        "exploitability": found.exploitability,
        "first_player": found.values[0],
    }


def print_table() -> None:
    """Print the Markdown table of everything in the results folder."""
    print(
        "| variant | seeds | before | after 40 | after 70 | each seed | first player |"
    )
    print("|---|---|---|---|---|---|---|")
    for variant in VARIANTS:
        paths = sorted(RESULTS.glob(f"{variant}_[0-9]*.json"))
        curves = [json.loads(path.read_text())["curve"] for path in paths]
        last = [curve[-1]["exploitability"] for curve in curves]
        cells = [
            variant,
            str(len(curves)),
            interval([curve[0]["exploitability"] for curve in curves]),
            interval([at(curve, 40)["exploitability"] for curve in curves]),
            interval(last),
            ", ".join(f"{value:.2f}" for value in last),
            interval([curve[-1]["first_player"] for curve in curves]),
        ]
        if curves:
            print(f"| {' | '.join(cells)} |")
    print("\n| variant | seeds | measure | before | after | each seed |")
    print("|---|---|---|---|---|---|")
    for variant in TIC_TAC_TOE:
        paths = sorted(RESULTS.glob(f"{variant}_[0-9].json"))
        curves = [json.loads(path.read_text())["curve"] for path in paths]
        for measure in ("return", "exploitability"):
            if not curves or measure not in curves[0][0]:
                continue
            last = [curve[-1][measure] for curve in curves]
            cells = [variant, str(len(curves)), measure]
            cells += [interval([c[0][measure] for c in curves]), interval(last)]
            print(f"| {' | '.join(cells)} | {', '.join(f'{v:.2f}' for v in last)} |")


def at(curve: list[dict[str, Any]], iteration: int) -> dict[str, Any]:
    """Return the point of an iteration."""
    return next(p for p in curve if p["iteration"] == iteration)


def interval(values: list[float]) -> str:
    """Return the mean and the 95 % t-interval over three seeds."""
    mean = f"{np.mean(values):.3f}" if values else "-"
    if len(values) != 3:
        return mean
    return f"{mean} ± {T95 * np.std(values, ddof=1) / 3**0.5:.3f}"


if __name__ == "__main__":
    main()
