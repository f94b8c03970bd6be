"""Rollouts of an iteration's tasks under other options, for the reward ``gain``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Task
from rllib_llm.rewards.gain import Gain


def play_baselines(algo: Any, episodes: SampledEpisodes) -> None:
    """Play the tasks again for each reward ``gain``, and store the mean returns.

    These rollouts are not trained on and count in their own metrics only. Trajectories
    whose rollouts were lost with an EnvRunner are masked.

    Args:
        algo: An algorithm that samples.
        episodes: Sampled episodes, before rewards are assigned.
    """
    for environment, components in algo._driver_components.by_environment.items():
        indices = [
            index
            for index, trajectory in enumerate(episodes.trajectories)
            if trajectory.task.environment == environment
        ]
        for gain in components.gains:
            if indices:
                _play(algo, gain, episodes, indices)


def _play(
    algo: Any, gain: Gain, episodes: SampledEpisodes, indices: Sequence[int]
) -> None:
    trajectories = [episodes.trajectories[index] for index in indices]
    tasks = baseline_tasks(gain, trajectories, first=algo.config.group_size)
    played = SampledEpisodes(algo.play_extra_tasks(tasks, explore=True)).trajectories
    algo.metrics.log_value("num_baseline_rollouts", len(tasks), reduce="sum")
    returns: dict[tuple[int, str], list[float]] = {}
    for each in played:
        key = each.task.group_id, each.agent_id
        returns.setdefault(key, []).append(each.episode_return)
    if played:
        mean = float(np.mean([each.episode_return for each in played]))
        algo.metrics.log_value("baseline_return_mean", mean, window=1)
    complete = {each.task.group_id for each in played}
    lost = []
    for index, trajectory in zip(indices, trajectories, strict=True):
        group = trajectory.task.group_id
        if group not in complete:
            lost.append(index)
        # An agent that never acted has the return 0.
        of_agent = returns.get((group, trajectory.agent_id), [0.0])
        trajectory.baselines[gain.key] = float(np.mean(of_agent))
    episodes.mask(lost)


def baseline_tasks(
    gain: Gain, trajectories: Sequence[Trajectory], *, first: int
) -> list[Task]:
    """Return the tasks of the trajectories under the baseline's options.

    Args:
        gain: The reward.
        trajectories: Trajectories of whole groups.
        first: Number of the first rollout, beyond those of the group, so that its
            tokens are sampled with other seeds.
    """
    tasks = {t.task.group_id: t.task for t in reversed(trajectories)}
    return [
        dataclasses.replace(
            task,
            rollout=first + number,
            options={**task.options, **gain.baseline_options},
            place=None,
        )
        for _, task in sorted(tasks.items())
        for number in range(gain.rollouts)
    ]
