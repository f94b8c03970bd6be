"""One return for the whole team, round by round: MAGRPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.advantages.estimators.magrpo_cross import cross_gains
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.keys import combined_keys
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
    """What the team earned from a round on, relative to the other rollouts' round.

    An agent's n-th turn belongs to round n; all agents of a round get the same. The
    rollouts of a task are compared from the first round on though they have gone
    different ways since, as they are not sampled as a tree.

    ``joint="cross"`` gives each agent credit of its own for the last joint turn: its
    text meets what the others said there in all rollouts that came the same way, and
    the mean over these combinations, played again without sampling, stands in place
    of what its own rollout earned. So it is not blamed for what others happened to say.

    Args:
        table: Whole groups.
        discount: Per round, in [0, 1].
        baseline: "mean", "leave_one_out" or "none". There is no deviation.
        team: "mean" or "sum" over the agents of an episode.
        joint: "aligned", or "cross" for games whose last turn nobody reads before
            answering, paid by the environment.

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
    rewards: np.ndarray = np.bincount(rounds, table.rewards)
    if team == "mean":
        _, of, sizes = np.unique(table.episode, return_inverse=True, return_counts=True)
        rewards /= sizes[of][table.owner][first]
    continues = np.append(False, np.diff(episodes[first]) == 0)
    parents = np.where(continues, np.arange(len(first)) - 1, -1)
    returns = tree_returns(rewards, parents, gamma=discount)
    tasks = table.task[table.owner]
    if joint == "aligned":
        keys = combined_keys(tasks[first], table.turn[first])
        return group_advantages(returns, keys, baseline=baseline)[rounds]
    values = returns[rounds]
    last = np.cumsum(table.num_turns)[table.num_turns > 0] - 1
    values[last] += cross_gains(table, TEAMS[team])[table.owner[last]]
    keys = combined_keys(tasks, table.agent[table.owner], table.turn)
    return group_advantages(values, keys, baseline=baseline)
