"""One greedy rollout per task, to compare the sampled ones with: ReMax's baseline."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID

from rllib_llm.algorithms.driver.team_rewards import share_rewards
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.to_turn_table import trajectories
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import Rewards

Played = tuple[int, str]  # group and AgentID


def validate_greedy(config: Any) -> None:
    """Check that greedy rollouts can be played and are paid as the sampled ones.

    Raises:
        ConfigError: With what stands against it.
    """
    if config.reward_transforms:
        raise ConfigError(
            "baseline='greedy' pays its rollouts by rewards alone, but "
            f"reward_transforms={config.reward_transforms!r} change what the sampled "
            "ones earned. Leave them out, or use another baseline."
        )
    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            "baseline='greedy' plays tasks again, as RLlib's stock EnvRunners cannot. "
            "Leave env_runner_cls out, or use another baseline."
        )


def with_greedy_returns(algo: Any, episodes: list[Any]) -> list[Any]:
    """Play the tasks of ``episodes`` once more, greedily, and note what that earned.

    Nothing is learnt from these rollouts, and they count in no metric but theirs.

    Args:
        algo: A GRPO algorithm.
        episodes: Sampled ones, paid already.

    Returns:
        The episodes whose task has a greedy rollout: one may fail for good.
    """
    if not episodes:
        return episodes
    tasks: dict[int, Task] = {}
    for episode in episodes:
        task = episode_data(episode).task
        tasks.setdefault(task.group_id, task)
    # A rollout beyond those of the group: it is no member.
    extra = [
        dataclasses.replace(task, rollout=algo.config.group_size)
        for task in tasks.values()
    ]
    greedy = algo.play_apart(extra, explore=False)
    earned = _earned(algo, greedy)
    played = {group for group, _ in earned}
    algo.metrics.log_value("num_greedy_rollouts", len(greedy), reduce="sum")
    if earned:
        mean = float(np.mean(list(earned.values())))
        algo.metrics.log_value("greedy_return_mean", mean, window=1)
    kept = [e for e in episodes if episode_data(e).task.group_id in played]
    for part in (p for e in kept for p in agent_episodes(e)):
        data = episode_data(part)
        # An agent whose turn never came earned nothing.
        agent = part.agent_id or DEFAULT_AGENT_ID
        data.greedy_return = earned.get((data.task.group_id, agent), 0.0)
    return kept


def _earned(algo: Any, episodes: Sequence[Any]) -> dict[Played, float]:
    """Return what each agent earned, by the run's own rewards."""
    if algo.config.shared_reward_fraction:
        share_rewards(list(episodes), algo.config.shared_reward_fraction)
    found = [trajectory for _, trajectory in trajectories(episodes)]
    rewards: Rewards = copy.deepcopy(algo._driver_components.rewards)
    if rewards.changes_anything and found:
        rewards(found, algo.iteration)
    return {(t.task.group_id, t.agent_id): t.episode_return for t in found}
