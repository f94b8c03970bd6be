"""Trees of forked episodes: nodes, their advantages, and training each node once.

A *node* is a turn. Forks share the turns before their place with their parent, so a
node is in every episode (leaf) below it. Nodes that answer one observation are
siblings: they were sampled at one place. The place of roots is the prompt.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.data.turn_table import Trajectory, TurnTable


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The nodes of a table's turns.

    Attributes:
        of_turn: Node of each turn. int64 [M]
        parents: Parent of each node, -1 for a root; smaller than the node. int64 [K]
        num_leaves: Episodes below each node. int64 [K]
        places: Place of each node; siblings have the same. int64 [K]
    """

    of_turn: np.ndarray
    parents: np.ndarray
    num_leaves: np.ndarray
    places: np.ndarray

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each node's turns over its leaves. [M] -> [K]"""
        sums = np.bincount(self.of_turn, weights=values, minlength=len(self.parents))
        return sums / np.maximum(self.num_leaves, 1)


def nodes_of(table: TurnTable) -> Nodes:
    """Return the nodes of the turns of a table.

    Of several agents each has nodes of its own, with its turn before as their parent.
    Between the two other agents may have acted: siblings answered what all of them
    said up to there.

    Args:
        table: Trajectories of agents, forked or not.
    """
    numbers: dict[tuple[int, ...], int] = {}
    prompts: list[tuple[int, ...]] = []
    of_turn = np.zeros(len(table.owner), np.int64)
    parents: list[int] = []
    place = 0
    for number, trajectory in enumerate(table.trajectories):
        above, whose = -1, (trajectory.task.group_id, trajectory.agent)
        for step in trajectory.steps:
            key = (*whose, *_sampler(trajectory, number, step), step)
            if key not in numbers:
                numbers[key] = len(parents)
                parents.append(above)
                # Whoever acted in the step before: it had this one as its result.
                before = _sampler(trajectory, number, step - 1)
                prompts.append((*whose, *before, step))
            above = of_turn[place] = numbers[key]
            place += 1
    leaves = np.bincount(of_turn, minlength=len(parents))
    columns = np.array(prompts, np.int64).reshape(-1, 5).T
    return Nodes(of_turn, np.array(parents, np.int64), leaves, combined_keys(*columns))


def _sampler(trajectory: Trajectory, number: int, step: int) -> tuple[int, int]:
    """Return the rollout and the attempt that sampled a step of a trajectory.

    Args:
        trajectory: The trajectory.
        number: Its number in the table.
        step: Number of the environment's step; -1: the prompt, which all share.
    """
    if step < 0:
        return (-1, -1)
    branches = [branch for branch in trajectory.path if branch.turn <= step]
    # Trajectories without a path share no turn with others: -1 is no rollout.
    return (branches[-1].rollout, branches[-1].attempt) if branches else (-1, number)


def place_values(nodes: Nodes, returns: np.ndarray) -> np.ndarray:
    """Return the Monte-Carlo value of the place before each turn.

    With k episodes that go on from a place it is the mean of k returns. Episodes count
    equally, also those that share turns after the place.

    Args:
        nodes: The nodes of the turns.
        returns: Return of each turn's episode, or its return from the turn on. [M]

    Returns:
        Mean of the returns over all episodes that go on from the place. [M]
    """
    if not len(returns):
        return np.zeros(0)
    places = nodes.places[nodes.of_turn]
    return key_means(returns, places)[places]


def replies_of(table: TurnTable) -> tuple[np.ndarray, np.ndarray]:
    """Return the place and the reply of each turn, by number.

    Replies with equal texts at one place are one.

    Args:
        table: Whole groups of one agent.

    Returns:
        Places and replies; turns with the same number share them. int64 [M]
    """
    nodes = nodes_of(table)
    places = nodes.places[nodes.of_turn]
    return places, combined_keys(places, table.completions)


def node_rewards(nodes: Nodes, centred: np.ndarray) -> np.ndarray:
    """Return each node's reward: its value above the root's and above its parent's.

    TreeRL (arXiv:2506.11902): ``([V(n) - V(root)] + [V(n) - V(parent)]) / sqrt(L(n))``
    with V(n) the mean return of the leaves below n, and L(n) their number, because
    leaves that are trained in full repeat the node L(n) times. The root is the prompt.

    Args:
        nodes: The nodes of the turns.
        centred: Return of the leaf of each turn, less V(root). [M]

    Returns:
        Rewards. [K]
    """
    values = nodes.means(centred)
    # Relative to the root, so its own value is 0.
    above = np.where(nodes.parents >= 0, values[nodes.parents], 0.0)
    return (2.0 * values - above) / np.sqrt(nodes.num_leaves)


def subtree_advantages(
    nodes: Nodes,
    returns: np.ndarray,
    owner: np.ndarray,
    groups: np.ndarray,
    *,
    scale: str = "group",
) -> np.ndarray:
    """Return each leaf's return relative to the subtrees that contain it.

    TreePO (arXiv:2508.17445): the mean over the subtrees of ``(R - mean) / (std +
    eps)``, mean and deviation over the subtree's leaves. The whole group is one; so is
    each node with at least two leaves, unless its parent has the same leaves: a set of
    leaves counts once, however many turns they share.

    Args:
        nodes: The nodes of the turns.
        returns: Return of each leaf. [N]
        owner: Leaf of each turn. int64 [M]
        groups: Group of each leaf, integers from 0. [N]
        scale: "group": divide by the subtree's deviation; "none".

    Returns:
        Advantages. [N]
    """
    total, count = group_advantages(returns, groups, scale=scale), np.ones(len(returns))
    # Leaves below the parent of each node; below a root's, the whole group. [K]
    above = nodes.num_leaves[nodes.parents]
    group_of, is_root = np.zeros(len(above), np.int64), nodes.parents < 0
    group_of[nodes.of_turn] = groups[owner]
    above[is_root] = np.bincount(groups)[group_of[is_root]]
    is_subtree = (nodes.num_leaves > 1) & (nodes.num_leaves < above)
    # A turn is a leaf's membership in its node; nodes without others to compare with
    # and repeated sets of leaves have none.
    member = np.flatnonzero(is_subtree[nodes.of_turn])
    leaf = owner[member]
    relative = group_advantages(returns[leaf], nodes.of_turn[member], scale=scale)
    total += np.bincount(leaf, relative, minlength=len(total))
    count += np.bincount(leaf, minlength=len(total))
    return total / count


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
