"""Advantage estimators for a team with different rewards (scout_porter-v0).

Run:  python benchmarks/unlike_pay.py [METHOD ...] --seeds 0 1 2
      python benchmarks/unlike_pay.py --table

One policy with the tiny model per agent, after SFT on a scripted policy with random
actions in half of the turns. Every run stops after the same number of sampled tokens.
Results are in benchmarks/results/unlike_pay/; the table is that of
docs/environments/scout_porter.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from learning_curves import with_interval

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data.episode_data import episode_data
from rllib_llm.evaluation.teams import play_assignment

RESULTS = Path(__file__).parent / "results" / "unlike_pay"
EPISODES, TOKENS, HELD_OUT = 64, 5_000, 256
ASSIGNMENT = {"scout_0": "scout", "porter_0": "porter"}
METHODS: dict[str, Callable[[], Any]] = {
    "MARFT": lambda: MARFTConfig().training(critic_lr=2e-3),
    "LLMPPO": lambda: LLMPPOConfig().training(critic_lr=2e-3),
    "GRPO": lambda: GRPOConfig().rollouts(group_size=8),
    "MAGRPO": lambda: (
        GRPOConfig().rollouts(group_size=8).training(advantage_estimator="magrpo")
    ),
    # Four messages of the scout per task, and four walks after each.
    "C3": lambda: (
        GRPOConfig()
        .rollouts(
            group_size=16,
            fork={"name": "every_turn", "roots": 4, "first": 1, "branches": 3},
        )
        .training(
            advantage_estimator={"name": "siblings", "team": "mean"},
            fork_training="tree",
        )
    ),
}


def run(method: str, seed: int) -> dict[str, Any]:
    """Train one team; return its measurements in held-out games before and after."""
    config = (
        METHODS[method]()
        .multi_agent(
            policies=list(ASSIGNMENT.values()),
            policy_mapping_fn={name: name for name in ASSIGNMENT.values()},
        )
        .environment("scout_porter-v0")
        .sft(demonstrations=300, mistake_rate=0.5)
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=EPISODES)
        .training(lr=3e-4, entropy_coeff=0.005, minibatch_size=EPISODES // 4)
        .debugging(seed=seed)
    )
    began = time.process_time()
    algo = config.build_algo()
    before, curve, tokens = measure(algo), [], 0
    while tokens < TOKENS:
        found = algo.train()["env_runners"]
        tokens = int(found["num_completion_tokens_lifetime"])
        curve.append(float(found["success_rate"]))
    result = {
        "method": method,
        "seed": seed,
        "before": before,
        "after": measure(algo),
        "curve": curve,
        "tokens": tokens,
        "cpu_minutes": (time.process_time() - began) / 60,
    }
    algo.stop()
    return result


def measure(algo: Any) -> dict[str, float]:
    """Return success, honesty, trust and both agents' returns in held-out games."""
    episodes = play_assignment(algo, ASSIGNMENT, HELD_OUT)
    data = [episode_data(episode) for episode in episodes]
    found = {"success": float(np.mean([bool(d.success) for d in data]))}
    for name in ("honesty", "trust"):
        # A game that ends before the porter walks has no such number.
        values = [d.metrics[name] for d in data if name in d.metrics]
        found[name] = float(np.mean(values)) if values else 0.0
    for agent in ASSIGNMENT:
        values = [
            e.agent_episodes[agent].get_return()
            for e in episodes
            if agent in e.agent_episodes
        ]
        found[agent] = float(np.sum(values)) / len(episodes)
    return found


def path_of(method: str, seed: int) -> Path:
    """Return the file of a run's results."""
    return RESULTS / f"{method.lower()}_{seed}.json"


def print_table() -> None:
    """Print one row per method, mean and range over seeds."""
    print(
        "| method | seeds | success before | after | 95 % interval of its mean "
        "| honesty | trust | return of the scout | sampled tokens | CPU min |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        paths = [path for seed in range(9) if (path := path_of(method, seed)).is_file()]
        runs = [json.loads(path.read_text()) for path in paths]
        if not runs:
            continue
        cells = [method, str(len(runs)), spread([r["before"]["success"] for r in runs])]
        for key in ("success", "honesty", "trust", "scout_0"):
            values = [r["after"][key] for r in runs]
            cells.append(spread(values))
            if key == "success":
                cells.append(with_interval(values, sign="").partition(" (")[2][:-1])
        cells.append(f"{statistics.mean(r['tokens'] for r in runs):,.0f}")
        cells.append(f"{statistics.mean(r['cpu_minutes'] for r in runs):.1f}")
        print(f"| {' | '.join(cells)} |")


def spread(values: list[float]) -> str:
    """Return mean and range."""
    mean, low, high = statistics.mean(values), min(values), max(values)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Run the methods without results, or print the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", choices=[*METHODS, []])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print_table()
        return
    quiet_loggers()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for method in args.methods or METHODS:
            if not path_of(method, seed).is_file():
                found = run(method, seed)
                path_of(method, seed).write_text(json.dumps(found, indent=1) + "\n")
                print(method, seed, found["before"], found["after"], flush=True)


if __name__ == "__main__":
    main()
