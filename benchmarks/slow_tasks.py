"""Age of weights and share of slow tasks when environments sleep 0 to 2 s.

Run:  python benchmarks/slow_tasks.py --iterations 30 --staleness 0 1 3

Each task sleeps a time of its own per turn, uniform in [0, 2) s and decided by its
seed; a task is slow above 1 s. Two EnvRunner processes sample ahead of the updates. A
sampler that trained on whatever is finished first would see slow tasks less often than
the run without sampling ahead (bound 0), which draws the same tasks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import ray

from rllib_llm import GRPOConfig
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data import columns
from rllib_llm.data.episode_data import policy_episodes, task_of
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
LONGEST = 2.0  # seconds per turn
SLOW = 1.0


class Sleepy(TextEnv):
    """Two turns; vowels are rewarded, so that returns differ."""

    max_turns = 2

    def start(self, rng: np.random.Generator) -> str:
        """Draw the seconds that each turn of the task sleeps."""
        self.seconds = float(rng.uniform(0.0, LONGEST))
        return "Say something."

    def parse(self, completion: str) -> str | None:
        """Accept anything."""
        return completion or "nothing"

    def reply(self, action: str) -> TurnResult:
        """Sleep, then count vowels."""
        time.sleep(self.seconds)
        reward = sum(action.count(vowel) for vowel in "aeiou") / 5
        return TurnResult("Again.", reward)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return one word."""
        return "hi"


def config(staleness: int) -> GRPOConfig:
    """Return the run's config."""
    return (
        GRPOConfig()
        .environment(Sleepy)
        .language_model(
            tiny={"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
        )
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=16, group_size=4)
        .env_runners(
            num_env_runners=2, num_envs_per_env_runner=8, sample_ahead=staleness
        )
        .training(
            lr=1e-3,
            max_staleness=staleness or None,
            drop_zero_variance_groups=False,
        )
        .evaluation(evaluation_interval=None)
    )


def seconds_of(seed: int) -> float:
    """Return the seconds per turn of the task with this seed."""
    env = Sleepy()
    env.reset(seed=seed)
    return env.seconds


def measure(staleness: int, iterations: int) -> list[str]:
    """Train; return the cells of one row."""
    algo = config(staleness).build_algo()
    collect, sleeps, ages = algo.collect, [], []

    def keep() -> list[object]:
        episodes = collect()
        version = algo.learner_group._learner._weights_seq_no
        tasks = {task_of(e).group_id: task_of(e) for e in episodes}
        sleeps.extend(seconds_of(task.seed) for task in tasks.values())
        ages.extend(
            version - turn.weights_seq_no
            for episode in episodes
            for part in policy_episodes(episode)
            for turn in part.get_extra_model_outputs(columns.TURN)
        )
        return episodes

    algo.collect = keep
    retried, start = 0, time.perf_counter()
    for _ in range(iterations):
        retried += int(algo.train()["num_groups_retried"])
    seconds = (time.perf_counter() - start) / iterations
    algo.stop()
    slow = np.array(sleeps) > SLOW
    error = float(np.sqrt(0.25 / len(slow)))
    return [
        str(staleness),
        str(len(slow)),
        f"{slow.mean():.2f} +- {error:.2f}",
        f"{np.mean(ages):.2f}",
        str(max(ages)),
        str(retried),
        f"{seconds:.1f}",
    ]


def main() -> None:
    """Print one row per bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 3])
    args = parser.parse_args()
    quiet_loggers()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    print(
        "| age bound | groups trained | share of slow tasks | mean age "
        "| largest age | groups sampled again | s per iteration |\n|" + 7 * "---|"
    )
    for staleness in args.staleness:
        print(f"| {' | '.join(measure(staleness, args.iterations))} |", flush=True)


if __name__ == "__main__":
    main()
