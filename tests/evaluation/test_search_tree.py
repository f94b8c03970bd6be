"""Arithmetic of the search tree, against a slow loop over all simulations."""

import functools
import math

import numpy as np
import pytest

from rllib_llm.forks.search_tree import (
    SampledTurn,
    TreePlace,
    add,
    backup,
    puct_scores,
    select,
    uct_scores,
)

DEPTH, BRANCHES = 4, 3
BEST = (2, 0, 1, 2)


def reward_of(path):
    """Return the reward of a path's last turn: 1 for the best leaf, less for others."""
    if path == BEST:
        return 1.0
    shared = next(
        (i for i, (a, b) in enumerate(zip(path, BEST, strict=False)) if a != b), 0
    )
    return 0.1 * shared if len(path) == DEPTH else 0.0


def sampled(path, rng):
    """Return the turns of a random episode below a path."""
    path, turns = tuple(path), []
    while len(path) < DEPTH:
        key = int(rng.integers(BRANCHES))
        path = (*path, key)
        last = len(path) == DEPTH
        logp = -1.0 - 0.1 * key
        turns.append(SampledTurn(key, reward_of(path), logp, last, path))
    return turns


def searched(score, simulations, width=6, gamma=1.0, seed=0):
    """Simulate; return the root and each simulation's path."""
    rng, root, paths = np.random.default_rng(seed), TreePlace(data=()), []
    for _ in range(simulations):
        path = select(root, score, width)
        if not path or path[-1].after is not None:
            place = path[-1].after if path else root
            path = [*path, *add(place, sampled(place.data, rng))]
        backup(path, gamma)
        paths.append(path[-1].data)
    return root, paths


def turns_below(place, before=()):
    for key, turn in place.turns.items():
        yield (*before, key), place, turn
        if turn.after is not None:
            yield from turns_below(turn.after, (*before, key))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("score", [uct_scores, puct_scores])
def test_visits_and_values_are_those_of_a_loop_over_simulations(score, gamma):
    rule = functools.partial(score, exploration=0.7)
    root, paths = searched(rule, 200, gamma=gamma)
    assert root.visits == len(paths) == 200
    count = 0
    for prefix, place, turn in turns_below(root):
        through = [p for p in paths if p[: len(prefix)] == prefix]
        returns = []
        for path in through:
            total = 0.0
            for depth in range(len(prefix), DEPTH + 1):
                total += gamma ** (depth - len(prefix)) * reward_of(path[:depth])
            returns.append(total)
        assert turn.visits == len(through)
        assert turn.value == pytest.approx(sum(returns) / len(returns), abs=1e-12)
        assert place.visits == sum(t.visits for t in place.turns.values())
        if turn.after is not None:
            assert turn.after.visits == turn.visits
            assert turn.after.data == prefix
        count += 1
    assert count > 20


@pytest.mark.parametrize("score", [uct_scores, puct_scores])
def test_the_most_visited_turns_lead_to_the_best_leaf(score):
    place, _ = searched(functools.partial(score, exploration=0.7), 800, width=8)
    path = []
    while place is not None:
        turn = place.most_visited()
        path.append(turn.data[-1])
        place = turn.after
    assert tuple(path) == BEST


def test_the_scores_are_those_of_a_slow_loop():
    rng = np.random.default_rng(3)
    for count in (1, 2, 5):
        values, logps = rng.normal(size=count), -rng.exponential(size=count)
        visits = rng.integers(1, 9, size=count).astype(np.float64)
        total = sum(visits.tolist())
        weights = [math.exp(p) for p in logps]
        for i in range(count):
            uct = values[i] + 0.6 * math.sqrt(math.log(total) / (1 + visits[i]))
            prior = weights[i] / sum(weights)
            puct = values[i] + 0.6 * prior * math.sqrt(total) / (1 + visits[i])
            arguments = (values, visits, logps)
            assert uct_scores(*arguments, exploration=0.6)[i] == pytest.approx(
                uct, abs=1e-12
            )
            assert puct_scores(*arguments, exploration=0.6)[i] == pytest.approx(
                puct, abs=1e-12
            )


def test_equal_turns_are_merged_and_count_as_samples():
    root = TreePlace()
    first = add(
        root, [SampledTurn("a", 0.0, -2.0, False, 1), SampledTurn("x", 1, -1, True)]
    )
    second = add(
        root, [SampledTurn("a", 0.0, -1.0, False, 2), SampledTurn("y", 0, -1, True)]
    )
    assert first[0] is second[0] and root.num_sampled == 2 and len(root.turns) == 1
    assert first[0].logp == -1.0 and first[0].data == 1
    for path in (first, second):
        backup(path, 1.0)
    assert (first[0].visits, first[0].value) == (2, 0.5)
    score = functools.partial(uct_scores, exploration=0.0)
    assert select(root, score, 3) == []  # one more turn is to be sampled
    assert select(root, score, 2) == [first[0], first[1]]
