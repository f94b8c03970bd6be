"""Trees of forked episodes: nodes, and advantages that train each node once.

A *node* is a turn. Forks share the turns before their place with their parent, so a
node is in every episode (leaf) below it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rllib_llm.data.turn_table import TurnTable


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The nodes of a table's turns.

    Attributes:
        of_turn: Node of each turn. int64 [M]
        parents: Parent of each node, -1 for a root; smaller than the node. int64 [K]
        num_leaves: Episodes below each node. int64 [K]
    """

    of_turn: np.ndarray
    parents: np.ndarray
    num_leaves: np.ndarray

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each node's turns over its leaves. [M] -> [K]"""
        sums = np.bincount(self.of_turn, weights=values, minlength=len(self.parents))
        return sums / np.maximum(self.num_leaves, 1)


def nodes_of(table: TurnTable) -> Nodes:
    """Return the nodes of the turns of a table.

    Args:
        table: Trajectories of agents, forked or not.
    """
    numbers: dict[tuple[int, ...], int] = {}
    of_turn = np.zeros(len(table.owner), np.int64)
    parents: list[int] = []
    place = 0
    for number, trajectory in enumerate(table.trajectories):
        above = -1
        branches = iter(trajectory.path)
        # Trajectories without a path share no turn with others: -1 is no rollout.
        branch, alone = next(branches, None), (-1, number)
        upcoming = next(branches, None)
        for turn in range(len(trajectory)):
            if upcoming is not None and upcoming.turn == turn:
                branch, upcoming = upcoming, next(branches, None)
            sampler = alone if branch is None else (branch.rollout, branch.attempt)
            key = (trajectory.task.group_id, trajectory.agent, *sampler, turn)
            if key not in numbers:
                numbers[key] = len(parents)
                parents.append(above)
            above = of_turn[place] = numbers[key]
            place += 1
    leaves = np.bincount(of_turn, minlength=len(parents))
    return Nodes(of_turn, np.array(parents, np.int64), leaves)


def train_nodes_once(
    nodes: Nodes, advantages: np.ndarray, is_trained: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each node's mean advantage, and in which episode it is trained.

    With the advantage of a node multiplied by its number of leaves, the gradient of a
    loss that sums over tokens is that of training all leaves in full.

    Args:
        nodes: The nodes of the turns.
        advantages: Advantage of each turn in each of its leaves. [M]
        is_trained: Turns that may be trained; only these enter the means. bool [M]

    Returns:
        Advantages [M], and the turns that are trained: of each node the first that may
        be. bool [M]
    """
    here = np.flatnonzero(is_trained)
    node, size = nodes.of_turn[here], len(nodes.parents)
    counts = np.bincount(node, minlength=size)
    sums = np.bincount(node, weights=advantages[here], minlength=size)
    means = sums / np.maximum(counts, 1)
    chosen = np.zeros(len(advantages), bool)
    # np.unique returns the first occurrence of each node.
    chosen[here[np.unique(node, return_index=True)[1]]] = True
    return means[nodes.of_turn], chosen
