"""Advantages in trees of forked episodes: TreeRL, TreePO."""

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

OF_TREES = ("treepo", "treerl")
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
