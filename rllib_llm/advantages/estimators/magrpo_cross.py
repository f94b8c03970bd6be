"""MAGRPO's cross mode: returns of all combinations of agents' last texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.advantages.tree import marginal_rewards
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.errors import ConfigError

MAX_GAMES = 4096
"""Largest number of combinations of one joint turn that are played."""


def cross_gains(table: TurnTable, of_team: Callable[[Any], float]) -> np.ndarray:
    """Return the gain of each trajectory's last text over its own rollout's return. [N]

    The rollouts of a task with equal texts before each agent's last one share a joint
    turn. All combinations of their agents' last texts are played again. A text's value
    is the mean of the team's return over the combinations with it
    (:func:`~rllib_llm.advantages.tree.marginal_rewards`).

    Args:
        table: Whole groups, with ``replay``.
        of_team: Returns the team's return of its agents' returns.

    Returns:
        Value minus the return of the team's own rollout. [N]

    Raises:
        ConfigError: If games cannot be played again, or there would be too many.
    """
    replay = table.replay
    if replay is None:
        raise ConfigError(
            "magrpo with joint='cross' needs games that can be played again, and only "
            "GRPO can do that. Use joint='aligned'."
        )
    team_returns = _of_episodes(table, of_team)
    gains = np.zeros(len(table))
    for turn in _multi_agent_turns(table):
        samples = [turn[agent] for agent in sorted(turn)]
        rewards = _rewards(
            table, samples, lambda players: of_team([*replay(players).values()])
        )
        # The combinations that were sampled are among those played: they test whether
        # the game repeats itself.
        _require_played(table, samples, rewards, team_returns)
        for sample, values in zip(samples, marginal_rewards(rewards), strict=True):
            sampled_returns = [
                team_returns[table.trajectories[i].episode] for i in sample
            ]
            gains[sample] = values - sampled_returns
    return gains


def _rewards(
    table: TurnTable,
    samples: list[list[int]],
    play: Callable[[list[Trajectory]], float],
) -> np.ndarray:
    """Return the team's return of each combination, one axis per agent."""
    games = math.prod(map(len, samples))
    if games > MAX_GAMES:
        raise ConfigError(
            f"joint='cross' would play {games} games for one joint turn "
            f"({' x '.join(str(len(s)) for s in samples)} texts), but the limit is "
            f"{MAX_GAMES}. Use a smaller group_size, or joint='aligned'."
        )
    distinct, places = [], []
    for sample in samples:  # equal texts have equal returns: play them once
        trajectories = [table.trajectories[i] for i in sample]
        keys = [(*one.completions, *one.observations) for one in trajectories]
        first = list(dict.fromkeys(keys))
        distinct.append([trajectories[keys.index(key)] for key in first])
        places.append([first.index(key) for key in keys])
    rewards = np.empty([len(d) for d in distinct])
    for place in np.ndindex(rewards.shape):
        players = [d[k] for d, k in zip(distinct, place, strict=True)]
        rewards[place] = play(players)
    return rewards[np.ix_(*places)]


def _of_episodes(table: TurnTable, of_team: Callable[[Any], float]) -> dict[int, float]:
    parts: dict[int, list[float]] = {}
    for one in table.trajectories:
        parts.setdefault(one.episode, []).append(one.episode_return)
    return {episode: of_team(returns) for episode, returns in parts.items()}


def _multi_agent_turns(table: TurnTable) -> list[dict[int, list[int]]]:
    """Return, per joint turn that rollouts share, each agent's trajectories."""
    before: dict[int, list[Any]] = {}
    for one in table.trajectories:
        # An agent without a turn before the last joint one has no history to compare.
        if len(one) > 1:
            texts = (one.agent, tuple(one.completions[:-1]))
            before.setdefault(one.episode, []).append(texts)
    turns_by_history: dict[Any, dict[int, list[int]]] = {}
    for i, one in enumerate(table.trajectories):
        if not len(one):
            continue
        # By text and not by token: what agents observe depends on the texts alone.
        place = one.task.group_id, tuple(sorted(before.get(one.episode, [])))
        turns_by_history.setdefault(place, {}).setdefault(one.agent, []).append(i)
    return list(turns_by_history.values())


def _require_played(
    table: TurnTable,
    samples: list[list[int]],
    rewards: np.ndarray,
    team_returns: dict[int, float],
) -> None:
    """Refuse games whose outcome the task's seed and the texts do not determine."""
    agents = [
        {table.trajectories[i].episode: k for k, i in enumerate(s)} for s in samples
    ]
    for episode in set(agents[0]).intersection(*agents[1:]):
        again = rewards[tuple(agent[episode] for agent in agents)]
        if math.isclose(again, team_returns[episode], rel_tol=1e-6, abs_tol=1e-6):
            continue
        task = table.trajectories[samples[0][agents[0][episode]]].task
        raise ConfigError(
            f"Rollout {task.rollout} of the task with seed {task.seed} has the return "
            f"{team_returns[episode]:g}, but {again:g} when played again with the same "
            "texts. joint='cross' needs games that the seed and the texts determine, "
            "rewarded by the environment alone. Seed the environment in reset(), omit "
            "rewards and reward_transforms, or use joint='aligned'."
        )
