"""Rank correlation with ties and rounding, and the spread of gradient norms."""

import math

import numpy as np
import pytest

from rllib_llm.advantages.fidelity import rank_correlation, summarise_gradient_norms
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.multi_agent_gae import message_gae
from rllib_llm.advantages.tree import leaf_means, sibling_advantages


def slow_ranks(numbers):
    """Mean rank among equals."""
    return [
        sum(x < y for x in numbers) + (sum(x == y for x in numbers) + 1) / 2
        for y in numbers
    ]


def slow_spearman(a, b):
    a, b = np.array(slow_ranks(a)), np.array(slow_ranks(b))
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("levels", [3, 1000])
def test_correlation_equals_the_definition(seed, levels):
    rng = np.random.default_rng(seed)
    exact = rng.integers(levels, size=30).astype(float)
    estimates = exact + rng.integers(levels, size=30)
    got = rank_correlation(estimates, exact)
    assert got == pytest.approx(slow_spearman(estimates, exact), abs=1e-9)
    order = rng.permutation(30)
    assert rank_correlation(estimates[order], exact[order]) == pytest.approx(got)
    assert rank_correlation(5.0 * estimates**3, exact) == pytest.approx(got)
    assert rank_correlation(-estimates, exact) == pytest.approx(-got)


def test_rounding_makes_ties():
    """0.1 + 0.2 and 0.3 are one advantage, in whatever order they were summed."""
    exact = np.array([0.3, 0.3, 0.3, 1.0])
    noisy = np.array([0.1 + 0.2, 0.3, 0.3 - 1e-15, 1.0])
    assert rank_correlation(noisy, exact) == pytest.approx(1.0)
    assert rank_correlation(1e-8 * noisy, exact) == pytest.approx(1.0)


@pytest.mark.parametrize("constant", [[0.0, 0.0], [0.3, 0.1 + 0.2], [1.0], []])
def test_nothing_to_rank_is_nan(constant, recwarn):
    other = np.arange(len(constant), dtype=float)
    assert math.isnan(rank_correlation(constant, other))
    assert math.isnan(rank_correlation(other, constant))
    assert not recwarn.list


def test_gradient_norms():
    norms = summarise_gradient_norms([1.0, 2.0, 9.0, 2.0])
    assert (norms.median, norms.largest, norms.spike) == (2.0, 9.0, 4.5)
    steady = summarise_gradient_norms([3.0])
    assert (steady.median, steady.largest, steady.spike) == (3.0, 3.0, 1.0)
    assert summarise_gradient_norms([0.0, 0.0, 1.0]).spike == math.inf
    assert math.isnan(summarise_gradient_norms([0.0, 0.0]).spike)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_correlation([0.0, np.nan], [0.0, 1.0]), r"estimates\[1\] is nan"),
        (lambda: rank_correlation([0.0, 1.0], [np.inf, 1.0]), r"exact\[0\] is inf"),
        (lambda: rank_correlation([0.0], [0.0, 1.0]), "Shapes differ"),
        (lambda: summarise_gradient_norms([]), "has 0 entries"),
        (lambda: summarise_gradient_norms([1.0, -1.0]), "the least -1.0"),
        (lambda: summarise_gradient_norms([np.nan]), r"norms\[0\] is nan"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def play_game(rng, roots, children):
    """Return exact and estimated advantages of a planner's and an actor's messages.

    Both choose one of 4 uniformly, R[plan, answer] is fixed. ``roots`` plans with
    ``children`` answers each; the estimates are those of an exact critic, of
    siblings (C3), and of one group of all rollouts (GRPO, aligned MAGRPO).
    """
    table = rng.normal(size=(4, 4))
    plans = rng.integers(4, size=roots)
    parent = np.repeat(np.arange(roots), children)
    reward = table[plans[parent], rng.integers(4, size=roots * children)]
    before, after = table.mean(), table.mean(axis=1)[plans]
    exact = np.concatenate([after - before, reward - after[parent]])

    leaves = len(reward)
    rollouts = np.tile(np.arange(leaves), 2)
    critic, _ = message_gae(
        np.concatenate([np.zeros(leaves), reward]),
        np.concatenate([np.full(leaves, before), after[parent]]),
        rollouts,
        gamma=1.0,
        lambda_=0.0,
    )
    critic = np.concatenate([critic[np.arange(roots) * children], critic[leaves:]])
    tree = np.concatenate([np.full(roots, -1), parent])
    nodes = leaf_means(np.concatenate([np.zeros(roots), reward]), tree)
    tree_advantages = sibling_advantages(nodes, tree, np.zeros(len(nodes)))
    group = group_advantages(reward, np.zeros(leaves))
    group = np.concatenate([np.bincount(parent, group) / children, group])
    return np.array([exact, critic, tree_advantages, group])


def test_fidelity_orders_the_estimators_as_theory_does():
    """An exact critic is perfect; at 8 answers each, C3's tree beats aligned rollouts.

    The trend of C3 against MAGRPO, for each agent apart.
    """
    rng = np.random.default_rng(0)
    tree = np.stack([play_game(rng, 2, 4) for _ in range(500)], axis=1)
    flat = np.stack([play_game(rng, 8, 1) for _ in range(500)], axis=1)
    planners, actors = (tree[..., :2], flat[..., :8]), (tree[..., 2:], flat[..., 8:])
    for branched, rolled_out in (planners, actors):
        exact, critic, tree_advantages, _ = branched.reshape(4, -1)
        assert rank_correlation(critic, exact) == pytest.approx(1.0)
        fidelity = rank_correlation(tree_advantages, exact)
        exact, _, _, aligned = rolled_out.reshape(4, -1)
        assert fidelity > rank_correlation(aligned, exact) + 0.02
