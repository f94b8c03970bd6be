"""Trees of messages and tables of joint actions against recursions and sums."""

import itertools

import numpy as np
import pytest

from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.tree import (
    leaf_means,
    marginal_rewards,
    sibling_advantages,
    tree_returns,
)

ATOL = 1e-9


def random_tree(seed, nodes=30):
    """Return parents (three roots) and rewards."""
    rng = np.random.default_rng(seed)
    parents = np.array([-1] * 3 + [int(rng.integers(i)) for i in range(3, nodes)])
    return parents, rng.normal(size=nodes)


def slow_return(node, rewards, parents, gamma):
    children = [c for c in range(len(parents)) if parents[c] == node]
    if not children:
        return rewards[node]
    future = [slow_return(c, rewards, parents, gamma) for c in children]
    return rewards[node] + gamma * sum(future) / len(future)


def slow_leaves(node, rewards, parents):
    children = [c for c in range(len(parents)) if parents[c] == node]
    if not children:
        return [rewards[node]]
    return [x for c in children for x in slow_leaves(c, rewards, parents)]


@pytest.mark.parametrize("seed", range(5))
def test_values_equal_the_recursion(seed):
    parents, rewards = random_tree(seed)
    got = tree_returns(rewards, parents, gamma=0.9)
    expected = [slow_return(n, rewards, parents, 0.9) for n in range(30)]
    np.testing.assert_allclose(got, expected, atol=ATOL)

    rewards[np.unique(parents[parents >= 0])] = 0.0
    got = leaf_means(rewards, parents)
    expected = [np.mean(slow_leaves(n, rewards, parents)) for n in range(30)]
    np.testing.assert_allclose(got, expected, atol=ATOL)


def test_chains_give_discounted_sums_of_rounds():
    """MAGRPO without branching: two rollouts of three rounds."""
    rewards = np.array([1.0, 0.0, 2.0, 0.0, 4.0, 8.0])
    parents = np.array([-1, -1, 0, 1, 2, 3])
    got = tree_returns(rewards, parents, gamma=0.5)
    expected = [1 + 1 + 1, 0 + 0 + 2, 2 + 2, 0 + 4, 4, 8]
    np.testing.assert_allclose(got, expected, atol=ATOL)
    advantages = sibling_advantages(got, parents, [0] * 6, baseline="mean")
    np.testing.assert_allclose(advantages[:2], [0.5, -0.5], atol=ATOL)
    assert (advantages[2:] == 0.0).all()  # only children: nothing to compare with


def test_equal_fan_out_makes_both_node_values_alike():
    parents = np.array([-1, -1, 0, 0, 1, 1, *np.repeat([2, 3, 4, 5], 3)])
    rewards = np.zeros(18)
    rewards[6:] = np.random.default_rng(0).normal(size=12)
    got = leaf_means(rewards, parents)
    np.testing.assert_allclose(got, tree_returns(rewards, parents, gamma=1.0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("baseline", ["leave_one_out", "mean", "none"])
def test_group_mate_advantages_equal_the_loop(seed, baseline):
    parents, values = random_tree(seed)
    tasks = np.arange(30) % 2  # roots 0 and 2 belong to task 0, root 1 to task 1
    tasks[3:] = 0
    got = sibling_advantages(values, parents, tasks, baseline=baseline)
    for node in range(30):
        group_mates = [
            m
            for m in range(30)
            if parents[m] == parents[node] and tasks[m] == tasks[node]
        ]
        others = [m for m in group_mates if m != node]
        pool = {"leave_one_out": others, "mean": group_mates, "none": []}[baseline]
        compare = np.mean(values[pool]) if pool and others else 0.0
        expected = values[node] - compare
        if baseline != "none" and not others:
            expected = 0.0
        assert got[node] == pytest.approx(expected, abs=ATOL)


def test_one_level_is_rloo():
    values = np.random.default_rng(0).normal(size=8)
    tasks = [0] * 4 + [1] * 4
    got = sibling_advantages(values, np.full(8, -1), tasks)
    assert (got == group_advantages(values, tasks, baseline="leave_one_out")).all()


def test_c3_advantages_ignore_earlier_samples():
    """Both plans lead to one good and one bad answer; only answers differ."""
    parents = np.array([-1, -1, 0, 0, 1, 1])
    values = leaf_means(np.array([0, 0, 1.0, 0.0, 0.0, 1.0]), parents)
    got = sibling_advantages(values, parents, [0] * 6)
    np.testing.assert_allclose(got, [0, 0, 1, -1, -1, 1], atol=ATOL)


@pytest.mark.parametrize("shape", [(4,), (3, 2), (2, 4, 3)])
def test_marginals_equal_the_sum_over_combinations(shape):
    table = np.random.default_rng(0).normal(size=shape)
    got = marginal_rewards(table)
    for agent, size in enumerate(shape):
        for k in range(size):
            combinations = [
                c for c in itertools.product(*map(range, shape)) if c[agent] == k
            ]
            expected = np.mean([table[c] for c in combinations])
            assert got[agent][k] == pytest.approx(expected, abs=ATOL)
        assert got[agent].mean() == pytest.approx(table.mean(), abs=ATOL)


def test_marginals_isolate_own_contributions_and_keep_their_scale():
    """R = f(a) + g(b): the marginal advantage of a is f(a) less its mean."""
    f, g = np.array([0.0, 1.0, 5.0]), np.array([2.0, -2.0])
    first, second = marginal_rewards(f[:, None] + g[None, :])
    np.testing.assert_allclose(first - first.mean(), f - f.mean(), atol=ATOL)
    np.testing.assert_allclose(second - second.mean(), g, atol=ATOL)
    idle = np.broadcast_to((f[:, None] + g)[..., None], (3, 2, 4))
    np.testing.assert_allclose(marginal_rewards(idle)[0], first, atol=ATOL)
    assert (marginal_rewards(idle)[2] == marginal_rewards(idle)[2][0]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tree_returns([0.0], [0], gamma=1.0), "parent of node 0 is 0"),
        (lambda: tree_returns([0, 0], [1, -1], gamma=1.0), "parent of node 0 is 1"),
        (lambda: tree_returns([0.0], [-2], gamma=1.0), "parent of node 0 is -2"),
        (lambda: tree_returns([0.0], [-1], gamma=-0.1), "gamma is -0.1"),
        (lambda: leaf_means([2.0, 1.0], [-1, 0]), "Node 0 has children and the reward"),
        (lambda: leaf_means([np.nan], [-1]), "nan"),
        (lambda: sibling_advantages([0.0], [-1], [0, 1]), "Shapes differ"),
        (lambda: sibling_advantages([0.0], [-1], [0], baseline="max"), "'max'"),
        (lambda: marginal_rewards(1.0), "one axis per agent"),
        (lambda: marginal_rewards([np.inf]), "inf"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_no_nodes():
    assert tree_returns([], [], gamma=1.0).shape == (0,)
    assert leaf_means([], []).shape == (0,)
    assert sibling_advantages([], [], []).shape == (0,)
