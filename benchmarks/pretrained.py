"""A pretrained model on tuned examples: zero-shot, few-shot, SFT and RL, over seeds.

Run:     python benchmarks/pretrained.py smollm_guess_number --seeds 0 1 2
         python benchmarks/pretrained.py smollm_guess_number --prompts
Table:   python benchmarks/pretrained.py --table
Plot:    python benchmarks/pretrained.py --plot docs/pretrained_curves.png
Writes:  benchmarks/results/pretrained/<example>_seed<n>.json, and with ``--prompts``
         <example>_prompts.json: zero-shot, and with games of the expert in the system
         prompt. Policies are sampled as in training, on the same held-out tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from learning_curves import draw_seeds, script_success

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import episode_data
from rllib_llm.offline.demonstrations import demonstrations
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RUNNER_KEYS = ("success_rate", "invalid_action_frac", "turns_mean")
LEARNER_KEYS = ("entropy", "grad_norm", "clip_frac", "vf_explained_var")
# An untrained model says more than a call before it, if it is not cut off.
PROMPTED = ["generation.max_new_tokens=24", "generation.max_context_tokens=1024"]
DRIVER_KEYS = ("return_std", "zero_variance_group_frac")
RESULTS = Path(__file__).parent / "results" / "pretrained"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--override", nargs="*", default=[])
    parser.add_argument("--prompts", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path, help="picture of all results")
    args = parser.parse_args()
    quiet_loggers()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.examples:
        stem = Path(name).stem
        if args.prompts:
            record = prompted(name, args.episodes, args.override)
            write(args.out / f"{stem}_prompts.json", record)
            continue
        for seed in args.seeds:
            record = run(name, seed, args)
            write(args.out / f"{stem}_seed{seed}.json", record)
    if args.table:
        print_table(args.out)
    if args.plot:
        plot(args.out, args.plot)


def write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n")


class Clock:
    """Wall and CPU minutes of this process."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def minutes(self) -> dict[str, float]:
        return {
            "wall_min": (time.perf_counter() - self.wall) / 60,
            "cpu_min": (time.process_time() - self.cpu) / 60,
        }


def run(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one example with one seed and return its curve."""
    recipe = load_recipe(name, [f"seed={seed}", *args.override])
    config = recipe.build_config()
    config.validate()
    clock = Clock()
    config.resolved_model = prepare_language_model(config)
    sft = clock.minutes()
    config.evaluation(
        evaluation_interval=None, evaluation_duration=1, evaluation_config={}
    )
    algo = config.build_algo()
    curve = [{"iteration": 0, **evaluate(algo, args.episodes)}]
    print(name, seed, sft, curve[-1], flush=True)
    clock = Clock()
    rows, spent = [], {"wall_min": 0.0, "cpu_min": 0.0}
    for iteration in range(1, recipe.total_iterations + 1):
        rows.append(summary(algo.train()))
        print(iteration, rows[-1], flush=True)
        if iteration % args.every == 0 or iteration == recipe.total_iterations:
            pause = Clock()
            curve.append({"iteration": iteration, **evaluate(algo, args.episodes)})
            for key, value in pause.minutes().items():
                spent[key] += value
            print(name, seed, curve[-1], clock.minutes(), flush=True)
    record = {
        "example": Path(name).stem,
        "seed": seed,
        "overrides": args.override,
        "sft": sft,
        "rl": {key: value - spent[key] for key, value in clock.minutes().items()},
        "evaluation": spent,
        "tasks": args.episodes,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 torch thread",
        "curve": curve,
        "iterations": rows,
        "greedy": evaluate(algo, args.episodes, explore=False),
    }
    print("greedy", record["greedy"], flush=True)
    algo.stop()
    return record


def prompted(name: str, episodes: int, overrides: list[str]) -> dict[str, Any]:
    """Return zero-shot and few-shot success of the model before any training."""
    record: dict[str, Any] = {"example": Path(name).stem, "tasks": episodes}
    trained = load_recipe(name, overrides).build_config()
    trained.validate()
    record["random"] = script_success(trained, 300, 1.0)
    record["expert"] = script_success(trained, 300, trained.sft_mistake_rate)
    plain = ["sft.demonstrations=0", *PROMPTED, *overrides]
    games = example_games(load_recipe(name, plain).build_config())
    for key, examples in (("zero_shot", None), ("few_shot", games)):
        config = load_recipe(name, plain).build_config()
        own = config.system_prompt
        texts = [t for t in (own, examples) if t]
        config.language_model(system_prompt="\n".join(texts) or None)
        config.evaluation(evaluation_interval=None, evaluation_config={})
        config.validate()
        config.resolved_model = prepare_language_model(config)
        algo = config.build_algo()
        record[key] = {"prompt": config.system_prompt, **evaluate(algo, episodes)}
        algo.stop()
        print(name, key, record[key], flush=True)
    return record


def example_games(config: Any, count: int = 3) -> str:
    """Return games of the faultless expert as text, ``count`` of each agent."""
    played = demonstrations(config.make_text_env, 40, seed=777, mistake_rate=0.0)
    texts, counts = [], dict[Any, int]()
    for game in played:
        counts[game.agent_id] = counts.get(game.agent_id, 0) + 1
        if counts[game.agent_id] > count:
            continue
        turns = zip(game.observations, game.completions, strict=False)
        lines = [f"User: {prompt}\nYou: {answer}" for prompt, answer in turns]
        texts.append("Example:\n" + "\n".join(lines))
    return "\n\n".join(texts)


def summary(result: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of an iteration that the guide reads."""
    runners = result["env_runners"]
    found = {key: runners.get(key) for key in RUNNER_KEYS}
    for module, stats in result.get("learners", {}).items():
        found |= {f"{module}/{k}": stats[k] for k in LEARNER_KEYS if k in stats}
    found |= {k: v for k, v in result.items() if k in DRIVER_KEYS}
    return {k: round(float(v), 4) for k, v in found.items() if v == v and v is not None}


def evaluate(algo: Any, episodes: int, explore: bool = True) -> dict[str, float]:
    """Return success and the share of invalid turns on held-out tasks."""
    tasks = algo.config.build_task_source(in_evaluation=True).fixed(episodes)
    played = algo.env_runner.sample(tasks=tasks, explore=explore)
    found = {
        "success": float(np.mean([bool(episode_data(e).success) for e in played])),
    }
    metrics = algo.env_runner.get_metrics()  # evaluation must not count as training
    for key, value in metrics.items():
        if "invalid" in key:
            found[key] = float(value.peek() if hasattr(value, "peek") else value)
    return found


def load(folder: Path) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the record without training and those of the seeds, by example."""
    found = {}
    for path in sorted(folder.glob("*_prompts.json")):
        name = path.stem.removesuffix("_prompts")
        seeds = sorted(folder.glob(f"{name}_seed*.json"))
        runs = [json.loads(p.read_text()) for p in seeds]
        found[name] = (json.loads(path.read_text()), runs)
    return found


def print_table(folder: Path) -> None:
    """Print the Markdown table of all results: medians, and every seed."""
    print(
        "| example | tasks | random | zero-shot | few-shot | script | after SFT "
        "| after RL | greedy after RL | SFT: wall, CPU min | RL: wall, CPU min |\n|"
        + 11
        * "---|"
    )
    for name, (prompts, runs) in load(folder).items():
        cells = [
            name,
            str(runs[0]["tasks"]),
            f"{prompts['random']:.2f}",
            f"{prompts['zero_shot']['success']:.2f}",
            f"{prompts['few_shot']['success']:.2f}",
            f"{prompts['expert']:.2f}",
            seeds_of([r["curve"][0]["success"] for r in runs]),
            seeds_of([r["curve"][-1]["success"] for r in runs]),
            seeds_of([r["greedy"]["success"] for r in runs]),
        ]
        for phase in ("sft", "rl"):
            times = [[r[phase][k] for r in runs] for k in ("wall_min", "cpu_min")]
            cells.append(", ".join(f"{np.median(t):.1f}" for t in times))
        print(f"| {' | '.join(cells)} |")


def seeds_of(values: list[float]) -> str:
    """Return the median and all values."""
    return f"{np.median(values):.2f} ({', '.join(f'{v:.2f}' for v in values)})"


def plot(folder: Path, path: Path) -> None:
    """Draw held-out success over iterations, one panel per example."""
    from matplotlib import pyplot

    found = load(folder)
    figure, panels = pyplot.subplots(
        1, len(found), figsize=(2.6 * len(found), 2.6), sharey=True, squeeze=False
    )
    for panel, (name, (prompts, runs)) in zip(panels[0], found.items(), strict=True):
        curves = [
            [(p["iteration"], p["success"]) for p in run_of_seed["curve"]]
            for run_of_seed in runs
        ]
        draw_seeds(panel, name, curves)
        panel.axhline(prompts["random"], linestyle=":", color="grey")
        panel.axhline(prompts["zero_shot"]["success"], linestyle="--", color="grey")
    panels[0][0].set_ylabel("success, held-out tasks")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
