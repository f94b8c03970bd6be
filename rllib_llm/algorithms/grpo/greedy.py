"""One greedy rollout per task as the baseline of the sampled ones: ReMax."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data.episode_data import task_of
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import Rewards
from rllib_llm.rewards.shared_reward import share_rewards

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPO, GRPOConfig

GroupAgent = tuple[int, str]  # group and AgentID


def validate_greedy(config: GRPOConfig) -> None:
    """Check that greedy rollouts can be sampled and get the rewards of sampled ones.

    Raises:
        ConfigError: If they cannot.
    """
    for specs in config.component_specs().values():
        if specs.reward_transforms:
            raise ConfigError(
                "baseline='greedy' gives its rollouts rewards, but not "
                f"reward_transforms={specs.reward_transforms!r}, which change the "
                "sampled rollouts' rewards. Omit them, or use another baseline."
            )
    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            "baseline='greedy' repeats tasks, which RLlib's stock EnvRunners cannot. "
            "Leave env_runner_cls unset, or use another baseline."
        )


def with_greedy_returns(algo: GRPO, episodes: SampledEpisodes) -> SampledEpisodes:
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
        task = task_of(episode)
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
    kept = episodes.select(
        [i for i, e in enumerate(episodes) if task_of(e).group_id in groups]
    )
    for data, trajectory in zip(kept.data, kept.trajectories, strict=True):
        # An agent that never acted has the return 0.
        group_agent = (trajectory.task.group_id, trajectory.agent_id)
        data.greedy_return = returns.get(group_agent, 0.0)
        trajectory.greedy_return = data.greedy_return
    return kept


def _returns(algo: GRPO, episodes: Sequence[Any]) -> dict[GroupAgent, float]:
    """Return each agent's return under the run's rewards."""
    if algo.config.shared_reward_fraction:
        share_rewards(list(episodes), algo.config.shared_reward_fraction)
    greedy_trajectories = SampledEpisodes(episodes).trajectories
    for environment, components in algo._driver_components.by_environment.items():
        # A copy: stateful components must not count the greedy rollouts.
        rewards: Rewards = copy.deepcopy(components.rewards)
        of_environment = [
            t for t in greedy_trajectories if t.task.environment == environment
        ]
        if rewards.changes_anything and of_environment:
            rewards(of_environment, algo.iteration)
    return {
        (t.task.group_id, t.agent_id): t.episode_return for t in greedy_trajectories
    }
