"""Seconds per iteration with and without sampling ahead, with a slow environment.

Run:  python benchmarks/sample_ahead.py --iterations 12

One EnvRunner process samples, the driver's process trains; the environment takes 50 ms
per step, as a tool or a browser would. The size of the model and the number of epochs
are chosen so that sampling and update take about the same time. Runs alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray

from rllib_llm import GRPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.envs.guess_number import GuessNumber

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class SlowGuess(GuessNumber):
    """guess_number with steps of 50 ms; vowels are rewarded, so that returns differ."""

    def step(self, action: str) -> Any:
        """Take a step."""
        time.sleep(0.05)
        observation, reward, *rest = super().step(action)
        reward += sum(action.count(vowel) for vowel in "aeiou") / 5
        return observation, reward, *rest


def config(ahead: int, epochs: int) -> GRPOConfig:
    """Return the run's config."""
    return (
        GRPOConfig()
        .environment(SlowGuess)
        .language_model(
            tiny={"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
        )
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=64, group_size=8)
        .env_runners(num_env_runners=1, num_envs_per_env_runner=16, sample_ahead=ahead)
        .training(lr=1e-3, num_epochs=epochs, drop_zero_variance_groups=False)
        .evaluation(evaluation_interval=None)
    )


def measure(ahead: int, epochs: int, iterations: int) -> dict[str, float]:
    """Return medians over the iterations after the first two."""
    algo = config(ahead, epochs).build_algo()
    rows: dict[str, list[float]] = {}
    for i in range(iterations + 2):
        started = time.perf_counter()
        result = algo.train()
        row = {"iteration": time.perf_counter() - started}
        row["sample"] = result["timers"]["env_runner_sampling_timer"]
        row["update"] = result["timers"]["learner_update_timer"]
        row["staleness"] = result["learners"]["default_policy"]["policy_staleness_mean"]
        for key, value in row.items():
            rows.setdefault(key, []).extend([value] if i >= 2 else [])
    algo.stop()
    return {key: statistics.median(values) for key, values in rows.items()}


def main() -> None:
    """Print one row per setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    quiet_loggers()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    print(
        "| sample_ahead | iteration, s | wait for samples, s | update, s | staleness |"
    )
    print("|" + 5 * "---|")
    for ahead in (0, 1, 0, 1):
        row = measure(ahead, args.epochs, args.iterations)
        cells = (row[k] for k in ("iteration", "sample", "update", "staleness"))
        print(
            f"| {ahead} | " + " | ".join(f"{c:.2f}" for c in cells) + " |", flush=True
        )


if __name__ == "__main__":
    main()
