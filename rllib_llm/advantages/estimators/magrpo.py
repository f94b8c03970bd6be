"""Advantages of the team's return, round by round: MAGRPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.estimators.magrpo_cross import cross_gains
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.tree import tree_returns
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice

TEAMS: dict[str, Callable[[Any], Any]] = {"mean": np.mean, "sum": np.sum}


@component(
    "advantage_estimator", "magrpo", paper="MAGRPO, Liu et al. 2025, arXiv:2508.04652"
)
def magrpo(
    table: TurnTable,
    *,
    discount: float = 0.9,
    baseline: str = "mean",
    team: str = "mean",
    joint: str = "aligned",
) -> np.ndarray:
    """Compare the team's return from a round on with the other rollouts' same round.

    An agent's n-th turn belongs to round n; all agents of a round get the same
    advantage. The rollouts of a task are compared in every round although they diverge
    after the first, since they are not sampled as a tree.

    ``joint="cross"`` gives each agent its own advantage for the last joint turn: its
    text is combined with the other agents' texts from all rollouts with the same
    history, and the mean return over these combinations, played again without sampling,
    replaces the return of its own rollout. So an agent's advantage does not depend on
    the texts that the others happened to sample.

    Args:
        table: Whole groups.
        discount: Discount per round, in [0, 1].
        baseline: "mean", "leave_one_out" or "none". No deviation divides the result.
        team: "mean" or "sum" over the agents of an episode.
        joint: "aligned", or "cross" for games in which agents do not read each other's
            last turns and only the environment gives rewards.

    Returns:
        Advantages. [M]
    """
    check_choice("team", team, TEAMS)
    check_choice("joint", joint, ("aligned", "cross"))
    if not len(table.owner):
        return np.zeros(0)
    episodes = table.episode[table.owner]
    rounds = combined_keys(episodes, table.turn)  # ordered by episode, then round
    _, first = np.unique(rounds, return_index=True)
    # Sums: the team's reward of a round is that of all its agents.
    rewards: np.ndarray = np.bincount(rounds, table.rewards)
    if team == "mean":
        _, episode_of, sizes = np.unique(
            table.episode, return_inverse=True, return_counts=True
        )
        rewards /= sizes[episode_of][table.owner][first]
    # An episode is a chain of rounds, i.e. a tree without branches: the parent of a
    # round is the one before it, unless the episode begins.
    continues = np.append(False, np.diff(episodes[first]) == 0)
    parents = np.where(continues, np.arange(len(first)) - 1, -1)
    returns = tree_returns(rewards, parents, gamma=discount)
    tasks = table.task[table.owner]
    if joint == "aligned":
        keys = combined_keys(tasks[first], table.turn[first])
        return group_advantages(returns, keys, baseline=baseline)[rounds]
    values = returns[rounds]
    # Only last turns can be exchanged: later turns would depend on them.
    last = np.cumsum(table.num_turns)[table.num_turns > 0] - 1
    values[last] += cross_gains(table, TEAMS[team])[table.owner[last]]
    keys = combined_keys(tasks, table.agent[table.owner], table.turn)
    return group_advantages(values, keys, baseline=baseline)
