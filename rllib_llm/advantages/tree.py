"""Advantages in trees of messages and over joint actions, in numpy.

A *node* is a sample at one place of a tree: a message (C3), or the joint action of all
agents in one round (MAGRPO). Siblings are nodes with one parent: they were sampled from
the same transcript, so only the samples themselves differ. Nodes are numbered 0..N-1,
parents before their children; a root has parent -1.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.losses._checks import (
    check_finite,
    check_same_shape,
    check_unit_interval,
    check_vector,
)


def tree_returns(
    rewards: np.ndarray, parents: np.ndarray, *, gamma: float
) -> np.ndarray:
    """Return each node's return, with the mean over its children as the future.

    MAGRPO (Liu et al. 2025, arXiv:2508.04652): ``R[n] = r[n] + gamma * mean of R over
    the children of n``. Rollouts that never branch are chains, one root each, and R is
    the discounted sum of their rounds.

    Args:
        rewards: Team reward of each node's round. [N]
        parents: Parent of each node, -1 for a root. [N]
        gamma: Discount per round, in [0, 1]; 0.9 in the released code.

    Returns:
        Returns. [N]

    Raises:
        ValueError: If shapes differ, a reward is not finite, gamma is outside [0, 1],
            or a parent has a larger number than its child.
    """
    check_unit_interval(gamma=gamma)
    returns, parents = _checked_tree(rewards, parents)
    fan_out = np.bincount(parents[parents >= 0], minlength=len(parents))  # children [N]
    for nodes in _levels_from_leaves(parents):
        above = parents[nodes]
        # np.add.at, because `returns[above] +=` would add only one of several children.
        np.add.at(returns, above, gamma * returns[nodes] / fan_out[above])
    return returns


def leaf_means(rewards: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Return the mean terminal reward below each node, each leaf counted once.

    The node value of C3 (arXiv:2603.06859). With equal fan-out on each level, as in
    its budgets, this is :func:`tree_returns` at gamma 1.

    Args:
        rewards: Terminal reward of each leaf; 0 at inner nodes. [N]
        parents: Parent of each node, -1 for a root. [N]

    Returns:
        Values; a leaf's is its reward. [N]

    Raises:
        ValueError: If an inner node has a reward, and as in :func:`tree_returns`.
    """
    sums, parents = _checked_tree(rewards, parents)
    inner = np.unique(parents[parents >= 0])
    if sums[inner].any():
        node = inner[np.flatnonzero(sums[inner])[0]]
        raise ValueError(
            f"Node {node} has children and the reward {sums[node]}. Only leaves may "
            "have a reward here. Use tree_returns for rewards of inner nodes."
        )
    # Leaves below each node, counted from the leaves upwards. [N]
    leaves = np.ones(len(sums))
    leaves[inner] = 0.0
    for nodes in _levels_from_leaves(parents):
        np.add.at(sums, parents[nodes], sums[nodes])
        np.add.at(leaves, parents[nodes], leaves[nodes])
    return sums / leaves


def sibling_advantages(  # language: nodes with one parent are siblings
    values: np.ndarray,
    parents: np.ndarray,
    tasks: Sequence[Hashable] | np.ndarray,
    *,
    baseline: str = "leave_one_out",
) -> np.ndarray:
    """Return each node's value relative to its siblings.

    C3 (arXiv:2603.06859): :func:`leaf_means` under ``"leave_one_out"``, the
    counterfactual of replacing this message only. MAGRPO: :func:`tree_returns` under
    ``"mean"``, ``"leave_one_out"`` or ``"none"``, without division by a deviation; all
    agents of the joint action get the same. An only child gets 0.

    Args:
        values: Value or return of each node. [N]
        parents: Parent of each node, -1 for a root. [N]
        tasks: Task of each node; roots of one task are siblings. [N]
        baseline: See :func:`~rllib_llm.advantages.group_relative.group_advantages`.

    Returns:
        Advantages. [N]

    Raises:
        ValueError: If shapes differ, a value is not finite, the baseline is unknown,
            or a parent has a larger number than its child.
    """
    values, parents = _checked_tree(values, parents)
    # All roots have parent -1; the task separates those of different trees.
    return group_advantages(values, combined_keys(tasks, parents), baseline=baseline)


def marginal_rewards(table: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the mean reward of each agent's samples over the others' samples.

    MAGRPO's ``cross`` joint mode (CoMLRL, arXiv:2508.04652): every combination of the
    agents' samples is rewarded, and sample k of agent i gets ``mean over a_-i of R(a_i
    = k, a_-i)``, COMA's counterfactual (arXiv:1705.08926) at the cost of rewards only.
    CoMLRL sums instead, so that its scale grows with the team. The ``aligned`` mode
    rewards combinations (k, k, ..) only: its rewards are the diagonal, and every
    agent's sample k gets the same one.

    Args:
        table: Reward of each combination, one axis per agent. [K_1, .., K_N]

    Returns:
        One array per agent, [K_i] each; their means are all the mean of the table.

    Raises:
        ValueError: If the table has no axis, no entry, or one that is not finite.
    """
    table = np.asarray(table, dtype=np.float64)
    if not table.ndim or not table.size:
        raise ValueError(
            f"table has shape {list(table.shape)}. It must have one axis per agent, "
            "as long as the agent's number of samples. Reward every combination."
        )
    check_finite("table", table, "Mend the reward function.")
    agents = range(table.ndim)
    # The mean over the axes of all other agents.
    return tuple(table.mean(axis=tuple(j for j in agents if j != i)) for i in agents)


def _checked_tree(
    numbers: np.ndarray, parents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a float64 copy of the numbers, and the parents as integers."""
    numbers, parents = np.array(numbers, dtype=np.float64), np.asarray(parents)
    check_vector("rewards or values", numbers)
    check_same_shape(numbers=numbers, parents=parents)
    check_finite("rewards or values", numbers, "Drop the failed branches first.")
    wrong = np.flatnonzero((parents < -1) | (parents >= np.arange(len(parents))))
    if wrong.size:
        raise ValueError(
            f"The parent of node {wrong[0]} is {parents[wrong[0]]}. It must be -1 or "
            "a smaller number. Number nodes in the order in which they were sampled."
        )
    return numbers, parents.astype(np.int64)


def _levels_from_leaves(parents: np.ndarray) -> list[np.ndarray]:
    """Return the nodes of each depth, deepest first, without the roots."""
    depths = np.zeros(len(parents), dtype=np.int64)
    ancestors = parents.copy()
    # One step towards the root per pass: as many passes as the tree has levels.
    while (below := ancestors >= 0).any():
        depths += below
        ancestors[below] = parents[ancestors[below]]
    deepest = depths.max(initial=0)
    return [np.flatnonzero(depths == depth) for depth in range(deepest, 0, -1)]
