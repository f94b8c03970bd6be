"""Paired tests, compared with textbook values and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from run_builder import RETURN, write_run

from rllib_llm.runs import read_run
from rllib_llm.runs.comparing import (
    differences,
    last_values,
    paired_returns,
    paired_successes,
)


def outcomes(both, lost, gained, neither):
    pairs = [(1, 1)] * both + [(1, 0)] * lost + [(0, 1)] * gained
    pairs += [(0, 0)] * neither
    a, b = zip(*pairs, strict=True)
    return [bool(x) for x in a], [bool(x) for x in b]


@pytest.mark.parametrize("lost, gained", [(0, 0), (1, 6), (3, 3), (0, 12), (9, 2)])
def test_mcnemar_is_a_binomial_test_of_discordant_pairs(lost, gained):
    found = paired_successes(*outcomes(20, lost, gained, 10))
    n, smaller = lost + gained, min(lost, gained)
    tail = sum(math.comb(n, k) for k in range(smaller + 1)) / 2**n
    assert found.p_value == pytest.approx(min(1.0, 2 * tail))
    assert found.difference == pytest.approx((gained - lost) / (30 + n))
    assert found.low < found.high and found.n == 30 + n
    assert found.mean_b - found.mean_a == pytest.approx(found.difference)


def test_the_interval_of_successes_covers():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        base = rng.random(60)
        a, b = base < 0.5, np.where(rng.random(60) < 0.7, base, rng.random(60)) < 0.65
        found = paired_successes(a, b)
        covered += found.low <= 0.15 <= found.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.025)


def test_permutation_test_of_few_tasks_is_exact():
    a, b = [0.0, 1.0, 2.0, 3.0, 0.5], [0.5, 1.2, 1.9, 4.0, 0.7]
    d = [y - x for x, y in zip(a, b, strict=True)]
    signs = list(itertools.product((1, -1), repeat=5))
    means = [sum(s * x for s, x in zip(sign, d, strict=True)) / 5 for sign in signs]
    beyond = sum(m >= sum(d) / 5 - 1e-12 for m in means) / len(means)
    below = sum(m <= sum(d) / 5 + 1e-12 for m in means) / len(means)
    found = paired_returns(a, b)
    assert found.p_value == pytest.approx(min(1.0, 2 * min(beyond, below)))
    assert found.low < found.difference < found.high


def test_returns_without_and_with_a_difference():
    rng = np.random.default_rng(1)
    tasks = rng.normal(size=200)
    same = paired_returns(tasks, tasks)
    assert (same.p_value, same.low, same.high, same.difference) == (1.0, 0, 0, 0)
    better = paired_returns(tasks, tasks + 0.1 + 0.2 * rng.normal(size=200))
    assert better.p_value < 0.001 and better.low > 0


def test_recipes_and_results_side_by_side(tmp_path):
    a = {"name": "a", "training": {"lr": 1}, "seed": 0}
    b = {"name": "b", "training": {"lr": 2, "gamma": 1}, "seed": 0}
    first = read_run(write_run(tmp_path / "a", [({}, [1, 2]), ({}, [1, 4])], a))
    second = read_run(write_run(tmp_path / "b", [({}, [1])], b))
    assert differences(first, second) == [
        ("training.gamma", None, 1),
        ("training.lr", 1, 2),
    ]
    assert last_values(first)[RETURN].mean == 3
    assert last_values(second) == {RETURN: last_values(second)[RETURN]}
