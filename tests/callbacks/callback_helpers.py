"""Synthetic episodes and results."""

from __future__ import annotations

import json

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import FinishReason, StopReason, Task, Turn


def make_episode(rewards, *, seed=0, tokens=3, success=None, invalid=0, text="hello"):
    """Return a finished episode with one turn of ``tokens`` tokens per reward."""
    episode = SingleAgentEpisode()
    data = episode_data(episode)
    data.task = Task(group_id=seed, rollout=0, seed=seed)
    episode.add_env_reset(observation=text, infos={})
    for index, reward in enumerate(rewards):
        last = index == len(rewards) - 1
        turn = Turn(
            prompt_ids=np.arange(2, dtype=np.int32),
            extends=index != 1,
            action_ids=np.arange(tokens, dtype=np.int32),
            action_logps=np.full(tokens, -0.5, np.float32),
            finish=FinishReason.LENGTH if index == 0 else FinishReason.STOP,
            env_t=index,
            invalid=index < invalid,
        )
        episode.add_env_step(
            observation=f"{text} {index + 1}",
            action=f"answer {index}",
            reward=float(reward),
            infos={},
            terminated=last,
            extra_model_outputs={columns.TURN: turn},
        )
    data.num_sampled = tokens * len(rewards)
    data.ids = list(range(data.num_sampled))
    data.stop_reason = StopReason.TERMINATED
    data.success = success
    return episode


def make_result(iteration, *, transcripts=None, evaluation=None, **env_runners):
    """Return a result as Tune passes it to callbacks."""
    result = {
        "training_iteration": iteration,
        "time_this_iter_s": 2.0,
        "time_total_s": 2.0 * iteration,
        "timers": {"env_runner_sampling_timer": 0.5},
        "env_runners": {"num_completion_tokens": 100, **env_runners},
        "learners": {
            "__all_modules__": {"entropy": 9.0},
            "default_policy": {"entropy": 1.5, "approx_kl_k3": 0.01},
        },
    }
    if transcripts is not None:
        result["env_runners"]["transcripts"] = [json.dumps(t) for t in transcripts]
    if evaluation is not None:
        result["evaluation"] = {"env_runners": evaluation}
    return result
