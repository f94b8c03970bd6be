"""One return for the whole team, round by round: MAGRPO, aligned."""

from __future__ import annotations

import numpy as np

from rllib_llm.objectives._checks import check_choice
from rllib_llm.objectives.advantages import group_advantages
from rllib_llm.objectives.keys import joint_keys
from rllib_llm.objectives.tree_credit import tree_returns
from rllib_llm.pieces.registry import piece
from rllib_llm.pieces.trajectories import TurnTable


@piece("credit", "magrpo", paper="MAGRPO, Liu et al. 2025, arXiv:2508.04652")
def magrpo(
    table: TurnTable,
    *,
    discount: float = 0.9,
    baseline: str = "mean",
    team: str = "mean",
) -> np.ndarray:
    """What the team earned from a round on, relative to the other rollouts' round.

    An agent's n-th turn belongs to round n; all agents of a round get the same. The
    rollouts of a task are compared from the first round on though they have gone
    different ways since, as they are not sampled as a tree.

    Args:
        table: Whole groups.
        discount: Per round, in [0, 1].
        baseline: "mean", "leave_one_out" or "none". There is no deviation.
        team: "mean" or "sum" over the agents of an episode.

    Returns:
        Advantages. [M]
    """
    check_choice("team", team, ("mean", "sum"))
    if not len(table.owner):
        return np.zeros(0)
    episodes = table.episode[table.owner]
    rounds = joint_keys(episodes, table.turn)  # ordered by episode, then round
    _, first = np.unique(rounds, return_index=True)
    rewards = np.bincount(rounds, table.rewards)
    if team == "mean":
        _, of, sizes = np.unique(table.episode, return_inverse=True, return_counts=True)
        rewards /= sizes[of][table.owner][first]
    continues = np.append(False, np.diff(episodes[first]) == 0)
    parents = np.where(continues, np.arange(len(first)) - 1, -1)
    returns = tree_returns(rewards, parents, gamma=discount)
    keys = joint_keys(table.task[table.owner][first], table.turn[first])
    return group_advantages(returns, keys, baseline=baseline)[rounds]
