"""SFT of the tiny vision-language model by the mean of colours that its tower reads.

Run:     python benchmarks/picture_colours.py ui_r1_pictures --demonstrations 3000 12000
Table:   python benchmarks/picture_colours.py --table
Writes:  benchmarks/results/picture_colours.json: held-out success after SFT, sampled as
         in training, with ``image_mean`` of 0.5 and of the background's colour.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from examples import Clock, means

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "picture_colours.json"
GREY = [0.5, 0.5, 0.5]


def background(name: str, count: int = 200) -> list[float]:
    """Return the most frequent colour of first observations, rounded to 0.01."""
    env = load_recipe(name).build_config().make_text_env()
    assert agents_of(env) is None, "Single agents only."
    shown = []
    for seed in range(count):
        _, info = env.reset(seed=seed, options={"split": "train"})
        shown += [picture.reshape(-1, 3) for picture in info["images"]]
    env.close()
    colours, counts = np.unique(np.concatenate(shown), axis=0, return_counts=True)
    return [round(float(v) / 255, 2) for v in colours[counts.argmax()]]


def run(name: str, mean: list[float], count: int, seed: int, tasks: int) -> dict:
    """Return success after SFT, and its CPU minutes."""
    recipe = load_recipe(name, [f"seed={seed}", f"sft.demonstrations={count}"])
    config = recipe.build_config()
    config.lm_tiny = {**config.lm_tiny, "image_mean": mean}
    config.evaluation(evaluation_interval=None, evaluation_config={})
    config.validate()
    clock = Clock()
    config.resolved_model = prepare_language_model(config)
    minutes = clock.minutes()["cpu_min"]
    algo = config.build_algo()
    played = local_runner(algo).sample(
        tasks=held_out_tasks(algo.config, tasks), explore=True
    )
    algo.stop()
    return {
        "recipe": name,
        "mean": mean,
        "demonstrations": count,
        "seed": seed,
        "success": means(played)["success"],
        "cpu_min": minutes,
    }


def print_table() -> None:
    """Print a row per recipe and number of demonstrations; every seed in a cell."""
    found = json.loads(RESULTS.read_text())
    print("| recipe | demonstrations | background | `image_mean` 0.5 | background |")
    print("|---" * 5 + "|")
    for name, count in dict.fromkeys((r["recipe"], r["demonstrations"]) for r in found):
        rows = [r for r in found if (r["recipe"], r["demonstrations"]) == (name, count)]
        colour = next(r["mean"] for r in rows if r["mean"] != GREY)
        cells = []
        for mean in (GREY, colour):
            values = [r["success"] for r in rows if r["mean"] == mean]
            cells.append(", ".join(f"{value:.2f}" for value in values))
        print(f"| {name} | {count:,} | {colour} | {' | '.join(cells)} |")


def main() -> None:
    """Run all combinations that are not in the file yet, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--demonstrations", type=int, nargs="+", default=[3000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    keys = ("recipe", "mean", "demonstrations", "seed")
    done = [[record[key] for key in keys] for record in found]
    for name in args.recipes:
        for count in args.demonstrations:
            for mean in (GREY, background(name)):
                for seed in args.seeds:
                    if [name, mean, count, seed] in done:
                        continue
                    found.append(run(name, mean, count, seed, args.tasks))
                    print(found[-1], flush=True)
                    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print_table()


if __name__ == "__main__":
    main()
