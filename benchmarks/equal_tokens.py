"""Scorers and replay beside plain GRPO and PPO at equal sampled tokens.

Run:     python benchmarks/equal_tokens.py late search --seeds 0 1 2
Table:   python benchmarks/equal_tokens.py --table (intervals over seeds, Student's t)
Writes:  benchmarks/results/equal_tokens/<task>_<arm>_seed<n>.json, one per run.

The arms of a task begin with the same model and sample until they have the task's
number of tokens, which include those of iterations in which only a scorer is trained.
Held-out success, on the same tasks for all arms and sampled as in training, is measured
whenever an eighth of the tokens is full. ``late``: the first of four words decides the
reward after the fourth. ``search``: one search, then an answer. ``two_hops``: two
searches, the second one for what the first one found, then an answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from examples import evaluate
from learning_curves import by_seed, with_interval

from rllib_llm.cli.session import quiet_loggers
from rllib_llm.recipes import load_recipe

RESULTS = Path(__file__).parent / "results" / "equal_tokens"
MARKS, HELD_OUT = 8, 300

# Of the recipes: the scorers' own settings, for tasks that the recipe does not have.
IMPLICIT = [
    "scorer={loss: pairwise, scores: log_ratio, pool: mean, beta: 0.05, lr: 1e-3, "
    "minibatch_size: 8}",
    "training.advantage_estimator=[{name: group, baseline: leave_one_out, scale: none},"
    " {name: scorer, baseline: leave_one_out, weight: 1.0}]",
    "training.drop_zero_variance_groups=false",
]
TURN_CRITIC = [
    "rollouts.group_size=1",
    "scorer={loss: td, gamma: 0.95, tau: 0.1, lr: 1e-3, num_epochs: 4, "
    "minibatch_size: 32, warmup_iters: 3}",
    "replay={episodes_per_iteration: 128, max_age: 5, coeff: 0.0}",
    "training.advantage_estimator=turn_critic",
    "training.policy_loss=pg",
    "training.drop_zero_variance_groups=false",
]
PLAIN = ["scorer=null", "training.advantage_estimator=group"]
SEARCH_START = [
    "env_config={hops: 1, results: 1}",
    "language_model={model: tiny, tiny: {vocab_size: 320}}",
    "sft={demonstrations: 2500, mistake_rate: 0.15, epochs: 2, lr: 2e-3, "
    "minibatch_size: 4, observation_weight: 0.1}",
]
TWO_HOPS = ["env_config.hops=2", "sft.demonstrations=4000"]
# Four searches of a group go on with two second searches each, those with two answers.
TREE = "rollouts.fork={name: every_turn, roots: 4, first: 1}"
# By task: sampled tokens, and by arm a recipe with its changes.
TASKS: dict[str, tuple[int, dict[str, tuple[str, list[str]]]]] = {
    "late": (
        16_000,
        {
            "grpo": ("istar", PLAIN),
            "implicit": ("istar", []),
            "turn_critic": ("archer", []),
            "ppo": ("delay_probe", []),
        },
    ),
    "search": (
        64_000,
        {
            "grpo": ("research", []),
            "implicit": ("research", IMPLICIT),
            "turn_critic": ("research", TURN_CRITIC),
            "ppo": (
                "search_r1",
                [
                    *SEARCH_START,
                    "rollouts.episodes_per_iteration=128",
                    "training={lr: 3e-4, num_epochs: 1, minibatch_size: 32, "
                    "critic_lr: 1e-3, gamma: 1.0, lambda_: 1.0}",
                ],
            ),
            "replay": (
                "research",
                ["replay={episodes_per_iteration: 64, max_age: 5}"],
            ),
            "self_imitation": (
                "research",
                [
                    "replay={episodes_per_iteration: 64, max_age: 5, keep: success, "
                    "positive_only: true, advantages: rebased, coeff: 0.5}"
                ],
            ),
            "spear": ("spear", []),
            "spear_without_replay": ("spear", ["replay=null"]),
        },
    ),
    "two_hops": (
        96_000,
        {
            "grpo": ("arpo", [*TWO_HOPS, "rollouts.fork=null"]),
            "arpo": ("arpo", TWO_HOPS),
            "aepo": ("aepo", TWO_HOPS),
            "treerl": (
                "arpo",
                [*TWO_HOPS, TREE, "training.advantage_estimator=treerl"],
            ),
            "treepo": (
                "arpo",
                [*TWO_HOPS, TREE, "training.advantage_estimator=treepo"],
            ),
        },
    ),
}


def run(task: str, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm until the task's tokens are sampled; return its curve."""
    budget, arms = TASKS[task]
    name, changes = arms[arm]
    config = load_recipe(name, [f"seed={seed}", *changes]).build_config()
    config.evaluation(evaluation_interval=None, evaluation_config={})
    algo = config.build_algo()
    start, tokens, iterations = time.process_time(), 0, 0
    curve = [{"tokens": 0, **evaluate(algo, HELD_OUT)}]
    while tokens < budget:
        result = algo.train()
        iterations += 1
        tokens += int(result["env_runners"]["num_completion_tokens"])
        if tokens >= len(curve) * budget / MARKS:
            curve.append({"tokens": tokens, **evaluate(algo, HELD_OUT)})
    algo.stop()
    return {
        "task": task,
        "arm": arm,
        "seed": seed,
        "iterations": iterations,
        "cpu_min": (time.process_time() - start) / 60,
        "curve": curve,
    }


def mean_success(record: dict[str, Any]) -> float:
    """Return the mean success after the beginning, over sampled tokens (trapezoids)."""
    curve = record["curve"]
    area = sum(
        (right["tokens"] - left["tokens"]) * (left["success"] + right["success"]) / 2
        for left, right in itertools.pairwise(curve)
    )
    return float(area / curve[-1]["tokens"])


def table(task: str) -> None:
    """Print the arms of a task: medians, and every seed in brackets."""
    _, arms = TASKS[task]
    found = {
        arm: [
            json.loads(path.read_text())
            for path in sorted(RESULTS.glob(f"{task}_{arm}_seed*.json"))
        ]
        for arm in arms
    }
    print(
        "| arm | before | after a quarter | half | all | mean over tokens "
        "| minus GRPO, by seed | its mean (95 %) | tokens | CPU min |\n|" + 10 * "---|"
    )
    plain = {r["seed"]: mean_success(r) for r in found["grpo"]}
    for arm, records in found.items():
        if not records:
            continue
        places = (0, MARKS // 4, MARKS // 2, -1)
        cells = [
            by_seed([_at(record, place)["success"] for record in records])
            for place in places
        ]
        means = [mean_success(record) for record in records]
        gains = [
            mean - plain[r["seed"]] for mean, r in zip(means, records, strict=True)
        ]
        print(
            f"| {arm} | {' | '.join(cells)} | {by_seed(means)} "
            f"| {', '.join(f'{gain:+.2f}' for gain in gains)} "
            f"| {with_interval(gains)} "
            f"| {statistics.median(r['curve'][-1]['tokens'] for r in records):,.0f} "
            f"| {statistics.median(r['cpu_min'] for r in records):.1f} |"
        )


def _at(record: dict[str, Any], mark: int) -> dict[str, float]:
    """Return the first point at or after a mark; -1: the last one."""
    curve: list[dict[str, float]] = record["curve"]
    if mark < 0:
        return curve[-1]
    budget = TASKS[record["task"]][0]
    return next(p for p in curve if p["tokens"] >= mark * budget / MARKS)


def main() -> None:
    """Run the arms, or print the tables of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []])
    parser.add_argument("--arms", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        for task in TASKS:
            table(task)
            print()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        for arm in args.arms or TASKS[task][1]:
            for seed in args.seeds:
                record = run(task, arm, seed)
                path = RESULTS / f"{task}_{arm}_seed{seed}.json"
                path.write_text(json.dumps(record, indent=1) + "\n")
                successes = [round(p["success"], 3) for p in record["curve"]]
                print(
                    task, arm, seed, successes, f"{record['cpu_min']:.1f}", flush=True
                )


if __name__ == "__main__":
    main()
