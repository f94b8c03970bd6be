"""Scores and speed of the environments that need optional libraries.

    python benchmarks/extra_environments.py [NAME ...] [--seeds 100]

prints, for each installed environment, the success of the random and the expert policy
in both splits and the turns per CPU second of this process, including resets. The
column is wall time for ScienceWorld and browsers, whose processes are not counted.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import MissingExtraError

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "babyai GoToLocal": ("babyai-v0", {}),
    "babyai PickupLoc": ("babyai-v0", {"level": "BabyAI-PickupLoc-v0"}),
    "babyai PutNextLocal": ("babyai-v0", {"level": "BabyAI-PutNextLocal-v0"}),
    "reasoning_gym chain_sum": ("reasoning_gym-v0", {}),
    "reasoning_gym countdown": ("reasoning_gym-v0", {"task": "countdown"}),
    "reasoning_gym knights_knaves": ("reasoning_gym-v0", {"task": "knights_knaves"}),
    "textworld coin_collector": ("textworld-v0", {"games": 4}),
    "scienceworld find-living-thing": ("scienceworld-v0", {}),
    "miniwob click-test-2": ("miniwob-v0", {}),
    "miniwob click-checkboxes": ("miniwob-v0", {"task": "click-checkboxes"}),
    "miniwob click-tab-2": ("miniwob-v0", {"task": "click-tab-2"}),
    "miniwob login-user": ("miniwob-v0", {"task": "login-user"}),
    "webshop_pages": ("webshop_pages-v0", {}),
}
SLOW = ("textworld-v0", "scienceworld-v0", "webshop_pages-v0")
# Java and browsers are other processes, whose time a process clock does not count.
WALL_TIME = ("scienceworld-v0", "miniwob-v0", "webshop_pages-v0")


def measure(name: str, config: dict[str, Any], seeds: int) -> str:
    """Return a line of scores: random in both splits, expert in both, speeds."""
    env = make_env(name, config)
    env.reset(seed=0)  # what is loaded or made once
    clock = time.perf_counter if name in WALL_TIME else time.process_time
    scores, speeds = [], []
    for policy in (random_policy, expert_policy):
        began, turns = clock(), 0
        for split in ("train", "test"):
            plays = [
                play(env, seed, policy, options={"split": split})
                for seed in range(seeds)
            ]
            turns += sum(len(p.actions) for p in plays)
            lengths = np.mean([len(p.actions) for p in plays])
            success = np.mean([bool(p.success) for p in plays])
            scores.append(f"{success:.3f} ({lengths:.1f} turns)")
        speeds.append(f"{turns / (clock() - began):.0f}")
    env.close()
    return f"random {scores[0]}; {scores[1]}  expert {scores[2]}; {scores[3]}  " + (
        f"turns/s random {speeds[0]} expert {speeds[1]}"
    )


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="environments; all by default")
    parser.add_argument("--seeds", type=int, default=100, help="episodes of each split")
    arguments = parser.parse_args()
    for label, (name, config) in CASES.items():
        if arguments.names and name not in arguments.names:
            continue
        # Each of their episodes takes seconds, or a game that takes seconds to make.
        seeds = max(1, arguments.seeds // 10) if name in SLOW else arguments.seeds
        try:
            print(f"{label}, {seeds} seeds: {measure(name, config, seeds)}", flush=True)
        except MissingExtraError as error:
            print(f"{label}: {error}")


if __name__ == "__main__":
    main()
