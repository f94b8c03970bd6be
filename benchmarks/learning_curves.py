"""Learning curves of tuned examples over seeds, on held-out tasks.

Run:     python benchmarks/learning_curves.py frozen_lake_ppo --seeds 0 1 2
Table:   python benchmarks/learning_curves.py --table
Writes:  benchmarks/results/<example>_seed<n>.json, one per run. The policy is sampled
         as in training (temperature 1) unless the key says greedy; evaluation tasks are
         the same for all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.offline.demonstrations import demonstrations
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--override", nargs="*", default=[])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path, help="picture of all results")
    parser.add_argument("--only", nargs="*", help="examples in the picture")
    args = parser.parse_args()
    quiet_loggers()
    for name in args.examples:
        for seed in args.seeds:
            record = run(name, seed, args.episodes, args.every, args.override)
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{name}_seed{seed}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
    if args.table:
        print_table()
    if args.plot:
        plot(args.plot, args.only)


def run(
    name: str, seed: int, episodes: int, every: int, overrides: list[str]
) -> dict[str, Any]:
    """Train one example with one seed and return its curve."""
    recipe = load_recipe(name, [f"seed={seed}", *overrides])
    config = recipe.build_config()
    config.validate()
    expert = expert_success(config)
    started = time.perf_counter()
    config.resolved_model = prepare_language_model(config)
    sft_s = time.perf_counter() - started
    config.evaluation(
        evaluation_interval=None, evaluation_duration=episodes, evaluation_config={}
    )
    algo = config.build_algo()
    runner = algo.env_runner
    curve = [point(algo, runner, 0, episodes)]
    print(name, seed, curve[-1], flush=True)
    started, cpu = time.perf_counter(), time.process_time()
    spent = 0.0
    for iteration in range(1, recipe.total_iterations + 1):
        algo.train()
        if iteration % every == 0 or iteration == recipe.total_iterations:
            paused = time.perf_counter()
            curve.append(point(algo, runner, iteration, episodes))
            spent += time.perf_counter() - paused
            print(name, seed, curve[-1], flush=True)
        curve[-1].setdefault("train_s", time.perf_counter() - started - spent)
    record = {
        "example": name,
        "seed": seed,
        "sft_s": sft_s,
        "train_s": time.perf_counter() - started - spent,
        "cpu_s": time.process_time() - cpu,
        "expert": expert,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 torch thread",
        "curve": curve,
    }
    algo.stop()
    return record


def point(algo: Any, runner: Any, iteration: int, episodes: int) -> dict[str, Any]:
    """Evaluate the current policy on held-out tasks, sampled and greedily."""
    from rllib_llm.data.episode_data import episode_data

    tasks = algo.config.build_task_source(in_evaluation=True).fixed(episodes)
    found: dict[str, Any] = {"iteration": iteration}
    for key, explore in (("", True), ("greedy_", False)):
        played = runner.sample(tasks=tasks, explore=explore)
        solved = [bool(episode_data(e).success) for e in played]
        found[key + "success"] = float(np.mean(solved))
        found[key + "return"] = float(np.mean([e.get_return() for e in played]))
    runner.get_metrics()  # evaluation must not count as training
    return found


def expert_success(config: Any, count: int = 300) -> float:
    """Return the success rate of the scripted policy of the demonstrations."""
    return script_success(config, count, config.sft_mistake_rate)


def script_success(config: Any, count: int, mistake_rate: float) -> float:
    """Return the success rate of the expert with this rate of random turns."""
    played = demonstrations(
        config.make_text_env, count, seed=12345, mistake_rate=mistake_rate
    )
    return float(np.mean([bool(d.success) for d in played]))


def load_results() -> dict[str, list[dict[str, Any]]]:
    """Return all records by example."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*_seed*.json")):
        record = json.loads(path.read_text())
        runs.setdefault(record["example"], []).append(record)
    return runs


def plot(path: Path, only: list[str] | None = None) -> None:
    """Draw held-out success over iterations, one panel per example.

    Args:
        path: File of the picture.
        only: Names of the examples, in order; None: all.
    """
    from matplotlib import pyplot

    runs = load_results()
    names = only or list(runs)
    columns = min(len(names), 6)
    rows = -(-len(names) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(2.6 * columns, 2.6 * rows), sharey=True, squeeze=False
    )
    for panel, name in zip(panels.flat, names, strict=True):
        curves = [
            [(p["iteration"], p["success"]) for p in record["curve"]]
            for record in runs[name]
        ]
        draw_seeds(panel, name, curves)
        panel.axhline(runs[name][0]["expert"], linestyle=":", color="grey")
    for row in panels:
        row[0].set_ylabel("success, held-out tasks")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def draw_seeds(panel: Any, name: str, curves: list[list[tuple[int, float]]]) -> None:
    """Draw the median of the seeds as a line, and every seed as dots.

    Args:
        panel: Axes of Matplotlib.
        name: Title of the panel.
        curves: Iterations and success of each seed.
    """
    by_iteration: dict[int, list[float]] = {}
    for color, curve in enumerate(curves):
        panel.plot(*zip(*curve, strict=True), ".", color=f"C{color}", markersize=5)
        for iteration, success in curve:
            by_iteration.setdefault(iteration, []).append(success)
    whole = sorted(i for i, seen in by_iteration.items() if len(seen) == len(curves))
    medians = [statistics.median(by_iteration[i]) for i in whole]
    panel.plot(whole, medians, color="black", linewidth=1)
    panel.set(title=name, xlabel="iteration", ylim=(0, 1.02))
    panel.title.set_fontsize(8)


def print_table() -> None:
    """Print the Markdown table of everything in the results folder."""
    runs = load_results()
    print(
        "| example | random | scripted expert | before RL | after RL "
        "| greedy before RL | greedy after RL | iterations | SFT, min | RL, min "
        "| RL with evaluation, CPU min |\n|" + 11 * "---|"
    )
    for name, records in runs.items():
        config = load_recipe(name, []).build_config()
        config.validate()
        # Those that are missing found theirs in the cache.
        built = [r["sft_s"] / 60 for r in records if r["sft_s"] > 1]
        cells = [
            name,
            f"{script_success(config, 300, 1.0):.2f}",
            f"{statistics.median(r['expert'] for r in records):.2f}",
            *(
                by_seed([r["curve"][end][key] for r in records])
                for key in ("success", "greedy_success")
                for end in (0, -1)
            ),
            str(records[0]["curve"][-1]["iteration"]),
            f"{statistics.median(built):.1f}" if built else "-",
            f"{statistics.median(r['train_s'] / 60 for r in records):.1f}",
            f"{statistics.median(r['cpu_s'] / 60 for r in records):.1f}",
        ]
        print(f"| {' | '.join(cells)} |")


def by_seed(values: list[float]) -> str:
    """Return the median and, in the order of the seeds, all values."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    every = ", ".join(f"{value:.2f}" for value in values)
    return f"{statistics.median(values):.2f} ({every})"


def with_interval(values: list[float], sign: str = "+") -> str:
    """Return the mean, and its 95 % interval over seeds (Student's t)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:{sign}.2f}"
    from scipy import stats

    error = statistics.stdev(values) / len(values) ** 0.5
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    low, high = mean - half, mean + half
    return f"{mean:{sign}.2f} ({low:{sign}.2f} to {high:{sign}.2f})"


if __name__ == "__main__":
    main()
