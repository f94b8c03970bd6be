"""One greedy rollout per task as the baseline of the sampled ones: ReMax."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID

from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.to_turn_table import trajectories
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import Rewards
from rllib_llm.rewards.shared_reward import share_rewards

GroupAgent = tuple[int, str]  # group and AgentID


def validate_greedy(config: Any) -> None:
    """Check that greedy rollouts can be sampled and get the rewards of sampled ones.

    Raises:
        ConfigError: If they cannot.
    """
    if config.reward_transforms:
        raise ConfigError(
            "baseline='greedy' gives its rollouts rewards, but not "
            f"reward_transforms={config.reward_transforms!r}, which change the sampled "
            "rollouts' rewards. Omit them, or use another baseline."
        )
    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            "baseline='greedy' repeats tasks, which RLlib's stock EnvRunners cannot. "
            "Leave env_runner_cls unset, or use another baseline."
        )


def with_greedy_returns(algo: Any, episodes: list[Any]) -> list[Any]:
    """Sample the tasks of ``episodes`` once more, greedily, and store the returns.

    These rollouts are not trained on and count in their own metrics only.

    Args:
        algo: A GRPO algorithm.
        episodes: Sampled episodes with their rewards.

    Returns:
        The episodes whose task has a greedy rollout; sampling one may fail.
    """
    if not episodes:
        return episodes
    tasks: dict[int, Task] = {}
    for episode in episodes:
        task = episode_data(episode).task
        tasks.setdefault(task.group_id, task)
    # Its rollout number is beyond those of the group, so it is not a member.
    extra = [
        dataclasses.replace(task, rollout=algo.config.group_size)
        for task in tasks.values()
    ]
    greedy = algo.play_extra_tasks(extra, explore=False)
    returns = _returns(algo, greedy)
    groups = {group for group, _ in returns}
    algo.metrics.log_value("num_greedy_rollouts", len(greedy), reduce="sum")
    if returns:
        mean = float(np.mean(list(returns.values())))
        algo.metrics.log_value("greedy_return_mean", mean, window=1)
    kept = [e for e in episodes if episode_data(e).task.group_id in groups]
    for part in (p for e in kept for p in agent_episodes(e)):
        data = episode_data(part)
        # An agent that never acted has the return 0.
        agent = part.agent_id or DEFAULT_AGENT_ID
        data.greedy_return = returns.get((data.task.group_id, agent), 0.0)
    return kept


def _returns(algo: Any, episodes: Sequence[Any]) -> dict[GroupAgent, float]:
    """Return each agent's return under the run's rewards."""
    if algo.config.shared_reward_fraction:
        share_rewards(list(episodes), algo.config.shared_reward_fraction)
    greedy_trajectories = [trajectory for _, trajectory in trajectories(episodes)]
    rewards: Rewards = copy.deepcopy(algo._driver_components.rewards)
    if rewards.changes_anything and greedy_trajectories:
        rewards(greedy_trajectories, algo.iteration)
    return {
        (t.task.group_id, t.agent_id): t.episode_return for t in greedy_trajectories
    }
