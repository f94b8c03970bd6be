"""Held-out success of tuned examples before and after RL, over seeds.

Run:     python benchmarks/examples.py starpo remax --seeds 0 1 2
Table:   python benchmarks/examples.py --table
Writes:  benchmarks/results/examples/<example>_seed<n>.json, one per run. The policy is
         sampled as in training, on the same 200 held-out tasks for all runs of an
         example; ``--each-stage`` plays them around every stage. Sweeps are run with
         ``rllib-llm train`` instead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.curricula.task_options import with_options
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.env_runner.task_groups import with_sources
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.offline.demonstrations import demonstrations
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "examples"
# Metrics of the training episodes that are kept of every iteration.
TRAINED = ("success_rate", "episode_return_mean", "turns_mean", "num_completion_tokens")


class Clock:
    """Wall and CPU minutes of this process since the start."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def minutes(self) -> dict[str, float]:
        """Return both."""
        return {
            "wall_min": (time.perf_counter() - self.wall) / 60,
            "cpu_min": (time.process_time() - self.cpu) / 60,
        }


def run(
    name: str,
    seed: int,
    held_out: int,
    overrides: list[str],
    options: dict[str, Any] | None = None,
    each_stage: bool = False,
) -> dict[str, Any]:
    """Train one example with one seed and return its record.

    With ``options`` of the environment, the same tasks are played with them as well;
    with ``each_stage`` they are played at the beginning and the end of each stage.
    """
    recipe = load_recipe(name, [f"seed={seed}", *overrides])
    configs = [stage.build_config() for stage in recipe.stages]
    configs[0].validate()
    record: dict[str, Any] = {"example": name, "seed": seed, "held_out": held_out}
    record["script"] = script(configs[0])
    clock = Clock()
    configs[0].resolved_model = prepare_language_model(configs[0])
    record["sft"] = clock.minutes()
    record |= {"rows": [], "parts": [], "rl": dict.fromkeys(clock.minutes(), 0.0)}
    checkpoint, folder = "", Path(tempfile.mkdtemp())
    names = getattr(recipe, "stage_names", [name])
    saved: dict[str, str | None] = {}
    for stage_name, stage, config in zip(names, recipe.stages, configs, strict=True):
        config.earlier_stages = dict(saved)
        if config.save_episodes is True:
            config.save_episodes = saved[stage_name] = str(folder / stage_name)
        config.evaluation(evaluation_interval=None, evaluation_config={})
        if checkpoint:
            config.initial_checkpoint = checkpoint
        algo = config.build_algo()
        if "before" not in record:
            record["before"] = evaluate(algo, held_out)
            if options:
                record["options"] = options
                record["before_with_options"] = evaluate(algo, held_out, options)
        elif stage is recipe.stages[-1]:
            record["before_last_stage"] = evaluate(algo, held_out)
        ends = [evaluate(algo, held_out)["success"]] if each_stage else []
        clock = Clock()
        for _ in range(int(stage.total_iterations or 0)):
            result = algo.train()
            found = result["env_runners"]
            record["rows"].append([float(found.get(k, np.nan)) for k in TRAINED])
            # The return of the environment says nothing where its weight is 0.
            parts = result.get("reward_parts", {})
            flat = {k: float(v) for k, v in parts.items() if not isinstance(v, dict)}
            record["parts"].append(flat)  # without those of a mixture
        record["rl"] = {k: record["rl"][k] + v for k, v in clock.minutes().items()}
        if each_stage:
            ends.append(evaluate(algo, held_out)["success"])
            record.setdefault("stages", {})[stage_name] = ends
        if stage is recipe.stages[-1]:
            record["after"] = evaluate(algo, held_out)
            if options:
                record["after_with_options"] = evaluate(algo, held_out, options)
        else:
            checkpoint = str(algo.save_to_path(tempfile.mkdtemp()))
        algo.stop()
    return record


def evaluate(
    algo: Any, count: int, options: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Play held-out tasks, sampled as in training; return success and mean return.

    In a mixture every environment plays so many tasks; the means are over all, and
    ``environments`` has those of each.
    """
    runner = local_runner(algo)
    names = [member.name for member in algo.config.mixture_members]
    tasks = [
        task
        for name in names or [None]
        for task in held_out_tasks(algo.config, count, name)
    ]
    tasks = [with_options(task, options or {}) for task in tasks]
    # In evaluation prompts have the texts of ``rollouts.prompt_text`` at that time.
    tasks = with_sources(tasks, algo._driver_components.shared_texts())
    played = runner.sample(tasks=tasks, explore=True)
    runner.get_metrics()  # evaluation must not count as training
    found: dict[str, Any] = means(played)
    if names:
        found["environments"] = {
            name: means([e for e in played if task_of(e).environment == name])
            for name in names
        }
    return found


def means(played: list[Any]) -> dict[str, float]:
    """Return success and mean return of episodes."""
    return {
        "success": float(np.mean([bool(episode_data(e).success) for e in played])),
        "return": float(np.mean([e.get_return() for e in played])),
    }


def script(config: Any, count: int = 200) -> dict[str, float]:
    """Return the success of the scripted policies that SFT imitates and of none."""
    rates = {"expert": config.sft_mistake_rate, "random": 1.0}
    return {
        name: float(
            np.mean(
                [
                    bool(d.success)
                    for d in demonstrations(
                        config.make_text_env, count, seed=12345, mistake_rate=rate
                    )
                ]
            )
        )
        for name, rate in rates.items()
    }


def print_table() -> None:
    """Print one row per example: every seed, and the median of the minutes."""
    print(
        "| example | random | scripted expert | before RL, by seed | after RL, by seed "
        "| SFT, CPU min | RL, CPU min | wall min |\n|" + 8 * "---|"
    )
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*_seed*.json")):
        record = json.loads(path.read_text())
        runs.setdefault(record["example"], []).append(record)
    for name, records in runs.items():
        # A run that found its model in the cache says nothing of SFT's minutes.
        built = [r["sft"]["cpu_min"] for r in records if r["sft"]["cpu_min"] > 0.1]
        wall = statistics.median(r["rl"]["wall_min"] for r in records)
        cells = [
            name,
            *(f"{records[0]['script'][k]:.2f}" for k in ("random", "expert")),
            *(", ".join(f"{r[k]['success']:.2f}" for r in records) for k in ENDS),
            f"{statistics.median(built):.1f}" if built else "-",
            f"{statistics.median(r['rl']['cpu_min'] for r in records):.1f}",
            f"{wall:.1f}",
        ]
        print(f"| {' | '.join(cells)} |")
        for environment in records[0]["after"].get("environments", ()):
            ends = [
                ", ".join(
                    f"{r[end]['environments'][environment]['success']:.2f}"
                    for r in records
                )
                for end in ENDS
            ]
            print(f"| {name}: {environment} | | | {' | '.join(ends)} | | | |")


ENDS = ("before", "after")


def main() -> None:
    """Run the examples, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--override", nargs="*", default=[])
    parser.add_argument("--options", type=json.loads, help="JSON, of the environment")
    parser.add_argument("--each-stage", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in args.examples:
        for seed in args.seeds:
            given = (args.held_out, args.override, args.options, args.each_stage)
            record = run(name, seed, *given)
            path = RESULTS / f"{name}_seed{seed}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
            keys = ("before", "before_last_stage", "after", "sft", "rl", "script")
            shown = [record.get(k) for k in keys]
            shown += [record["stages"]] if args.each_stage else []
            print(name, seed, *shown, flush=True)


if __name__ == "__main__":
    main()
