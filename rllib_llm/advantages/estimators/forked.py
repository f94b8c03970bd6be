"""Advantages in trees of forked episodes: TreeRL, TreePO, C3."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.fork_trees import (
    node_rewards,
    nodes_of,
    subtree_advantages,
)
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice

OF_TREES = ("siblings", "treepo", "treerl")
"""Estimators that compare the episodes of a tree."""


@component("advantage_estimator", "treerl", paper="TreeRL, arXiv:2506.11902")
def treerl(table: TurnTable) -> np.ndarray:
    """Compare each turn's value with that of the prompt and of the turn before it.

    The value V of a turn is the mean return of the episodes that contain it, that of
    the prompt the mean of the group: ``A = ([V(turn) - V(prompt)] + [V(turn) - V(turn
    before)]) / sqrt(number of these episodes)``. It needs ``rollouts.fork``. In an
    episode that shares no turn, later turns get the return less the group's mean, and
    the first one twice that.

    Args:
        table: Whole groups.

    Returns:
        Advantages. [M]
    """
    keys = combined_keys(table.task, table.agent)
    nodes = nodes_of(table)
    centred = group_advantages(table.returns, keys)[table.owner]
    return node_rewards(nodes, centred)[nodes.of_turn]


@component("advantage_estimator", "treepo", paper="TreePO, arXiv:2508.17445")
def treepo(table: TurnTable, *, scale: str = "group") -> np.ndarray:
    """Compare each return within all subtrees that contain the episode.

    The mean of ``(R - mean) / std`` over the subtrees: the group, and the episodes that
    share the turns up to each place at which some of them were forked. It needs
    ``rollouts.fork``. Without a fork it is ``group``.

    Args:
        table: Whole groups.
        scale: "group": divide by the standard deviation of the subtree's returns;
            "none".

    Returns:
        Advantages. [M]
    """
    check_choice("scale", scale, ("group", "none"))
    keys = combined_keys(table.task, table.agent)
    nodes = nodes_of(table)
    return subtree_advantages(nodes, table.returns, table.owner, keys, scale=scale)[
        table.owner
    ]


@component("advantage_estimator", "siblings", paper="C3, arXiv:2603.06859")
def siblings(  # language: turns that were sampled at one place are siblings
    table: TurnTable,
    *,
    baseline: str = "leave_one_out",
    scale: str = "none",
    team: str = "own",
) -> np.ndarray:
    """Compare each turn with the others that were sampled at its place.

    The value of a turn is the mean return of the episodes that contain it: ``A =
    V(turn) - mean of V of the others``. Everything said before is the same for all of
    them, and what agents say later is sampled anew below each. A turn that was sampled
    alone at its place gets 0. It needs ``rollouts.fork``.

    Args:
        table: Whole groups.
        baseline: "leave_one_out" (C3): the mean of the others; "mean": of all.
        scale: "none" (C3); "group": divide by the deviation of the values at the place
            (AT-GRPO, arXiv:2510.11062).
        team: Return of an episode: "own" of the agent, "mean" or "sum" over its agents
            (C3: they share one).

    Returns:
        Advantages. [M]
    """
    check_choice("team", team, ("own", "mean", "sum"))
    returns = table.returns
    if team != "own":
        episodes = combined_keys(table.episode)
        sums = np.bincount(episodes, returns)
        sizes = np.bincount(episodes) if team == "mean" else 1
        returns = (sums / sizes)[episodes]
    nodes = nodes_of(table)
    # Centred first, so that equal returns give exactly 0.
    centred = group_advantages(returns, combined_keys(table.task, table.agent))
    values = nodes.means(centred[table.owner])
    of_nodes = group_advantages(values, nodes.places, baseline=baseline, scale=scale)
    return of_nodes[nodes.of_turn]
