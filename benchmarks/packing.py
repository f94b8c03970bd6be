"""Update time with packed rows relative to rows apart, by the length of rows.

Run:  python benchmarks/packing.py tiny small

GRPO's update of one pass over random episodes with log-normal lengths, in CPU seconds.
Both ways train the same episodes alternately; ratios are medians of consecutive pairs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from standing_workload import SIZES

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.cli.session import quiet_loggers
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import FinishReason, StopReason, Task, Turn
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.offline.prepare_model import prepare_language_model

EPISODES = 32
# Median length of a row in tokens, and most tokens of a forward pass.
CASES = ((64, 1024), (64, 4096), (256, 4096))


def random_episode(number: int, length: int) -> SingleAgentEpisode:
    """Return an episode of one turn, half of it prompt."""
    rng, space = np.random.default_rng(number), UnicodeText()
    episode = SingleAgentEpisode(observation_space=space, action_space=space)
    episode.add_env_reset(observation="", infos={})
    data = episode_data(episode)
    data.task = Task(group_id=number, rollout=0, seed=number)
    data.stop_reason, data.advantage = StopReason.TERMINATED, float(np.cos(number))
    prompt, action = (
        rng.integers(20, 200, n).astype(np.int32) for n in (length // 2, length // 2)
    )
    turn = Turn(
        prompt_ids=prompt,
        extends=True,
        action_ids=action,
        action_logps=np.full(len(action), -5.0, np.float32),
        finish=FinishReason.STOP,
    )
    data.record(turn)
    episode.add_env_step(
        observation="",
        action="",
        reward=1.0,
        infos={},
        terminated=True,
        extra_model_outputs={columns.TURN: turn},
    )
    return episode


def build(size: str, budget: int, packing: bool) -> Any:
    """Return a Learner."""
    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(tiny=SIZES[size])
    config.training(lr=1e-6, micro_batch_tokens=budget, packing=packing)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    spaces = {DEFAULT_MODULE_ID: (UnicodeText(), UnicodeText())}
    learner = config.build_learner(spaces=spaces)
    learner.build()
    return learner


def timed(learner: Any, episodes: list[Any]) -> tuple[float, float]:
    """Return CPU seconds and padding of an update."""
    start = time.process_time()
    data = LLMTrainingData(episodes=episodes)
    results = learner.update(training_data=data, timesteps={})
    seconds = time.process_time() - start
    return seconds, float(results[DEFAULT_MODULE_ID]["padding_frac"].peek())


def main() -> None:
    """Print one row per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=("tiny", "small"))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    quiet_loggers()
    torch.set_num_threads(1)
    print(
        "| model | median length | micro_batch_tokens | padding apart | padding packed "
        "| apart, CPU-s | packed, CPU-s | ratio |\n|---|---|---|---|---|---|---|---|"
    )
    for size in args.sizes:
        for median, budget in CASES:
            lengths = np.random.default_rng(0).lognormal(np.log(median), 0.8, EPISODES)
            episodes = [
                random_episode(i, int(n)) for i, n in enumerate(lengths.clip(8, 2000))
            ]
            learners = [build(size, budget, packing) for packing in (False, True)]
            for learner in learners:
                timed(learner, episodes)
            pairs = [
                [timed(learner, episodes) for learner in learners]
                for _ in range(args.repeats)
            ]
            apart, packed = (statistics.median(p[i][0] for p in pairs) for i in (0, 1))
            ratio = statistics.median(p[1][0] / p[0][0] for p in pairs)
            padding = [f"{pairs[0][i][1]:.1%}" for i in (0, 1)]
            cells = [size, str(median), f"{budget:,}", *padding]
            print(
                f"| {' | '.join(cells)} | {apart:.2f} | {packed:.2f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
