"""Paired tests, compared with textbook values, enumeration and simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.evaluation.paired_outcomes import (
    paired_means,
    paired_outcomes,
    paired_successes,
)


def successes(both, lost, gained, neither):
    pairs = [(1, 1)] * both + [(1, 0)] * lost + [(0, 1)] * gained
    pairs += [(0, 0)] * neither
    a, b = zip(*pairs, strict=True)
    return [bool(x) for x in a], [bool(x) for x in b]


@pytest.mark.parametrize("lost, gained", [(0, 0), (1, 6), (3, 3), (0, 12), (9, 2)])
def test_mcnemar_is_a_binomial_test_of_discordant_pairs(lost, gained):
    found = paired_successes(*successes(20, lost, gained, 10))
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
    found = paired_means(a, b, "return")
    assert found.p_value == pytest.approx(min(1.0, 2 * min(beyond, below)))
    assert found.low < found.difference < found.high


def test_returns_without_and_with_a_difference():
    rng = np.random.default_rng(1)
    tasks = rng.normal(size=200)
    same = paired_means(tasks, tasks, "return")
    assert (same.p_value, same.low, same.high, same.difference) == (1.0, 0, 0, 0)
    noisy = tasks + 0.1 + 0.2 * rng.normal(size=200)
    better = paired_means(tasks, noisy, "return")
    assert better.p_value < 0.001 and better.low > 0


def test_the_interval_of_successes_in_exact_arithmetic():
    lost, gained, n = 2, 9, 40
    up, down = Fraction(2 * gained + 1, 2 * n + 4), Fraction(2 * lost + 1, 2 * n + 4)
    variance = (up + down - (up - down) ** 2) / (n + 2)
    half = 1.959964 * math.sqrt(variance)
    result = paired_successes(*successes(20, lost, gained, n - 20 - lost - gained))
    assert result.low == pytest.approx(float(up - down) - half, rel=1e-12)
    assert result.high == pytest.approx(float(up - down) + half, rel=1e-12)


def test_the_interval_of_means_is_that_of_all_resamples():
    a, b = np.zeros(5), np.array([0.5, 0.2, -0.1, 1.0, 0.7])
    means = [np.mean(each) for each in itertools.product(b, repeat=5)]
    low, high = np.percentile(np.array(means, np.float64), [2.5, 97.5])
    result = paired_means(a, b, "return")
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.03)
    assert result.difference == pytest.approx(0.46, rel=1e-14)


def played(task, value, sample=0, success=None):
    return Outcome(task, 10 + task, sample, episode_return=value, success=success)


def failed(task, sample=0):
    return Outcome(task, 10 + task, sample, failure="timeout")


def test_outcomes_are_paired_by_task():
    a = [played(n, 0.0, success=False) for n in range(6)]
    b = [played(n, float(n), success=n > 2) for n in range(6)]
    (solved, returns), left_out = paired_outcomes(a, b)
    assert left_out == 0 and (solved.what, returns.what) == ("success", "return")
    assert solved == paired_successes([False] * 6, [n > 2 for n in range(6)])
    assert returns.difference == 2.5 and returns.n == 6


def test_a_task_that_one_of_them_failed_does_not_count():
    a = [played(0, 1.0), failed(1), played(2, 1.0)]
    b = [played(0, 3.0), played(1, 100.0), failed(2)]
    (returns,), left_out = paired_outcomes(a, b)
    assert (returns.n, returns.difference, left_out) == (1, 2.0, 2)
    assert (returns.low, returns.high, returns.p_value) == (None, None, 1.0)
    assert paired_outcomes([failed(0)], [played(0, 1.0)]) == ([], 1)


def test_an_episode_that_a_limit_ended_is_not_solved():
    a = [played(0, 1.0, success=True), played(1, 0.0), played(2, 0.0, success=False)]
    b = [played(n, 1.0, success=True) for n in range(3)]
    (solved, _), _ = paired_outcomes(a, b)
    assert solved == paired_successes([True, False, False], [True] * 3)


def test_samples_of_a_task_are_averaged_first():
    """Many samples of one task do not narrow the interval."""
    a = [played(t, 0.0, s, success=False) for t in range(4) for s in range(3)]
    values = {0: (1, 1, 1), 1: (0, 1, 0), 2: (0, 0, 0), 3: (1, 0, 1)}
    b = [
        played(t, float(v), s, success=bool(v))
        for t, each in values.items()
        for s, v in enumerate(each)
    ]
    b[4] = failed(1, 1)  # the task's mean is over the two others
    (solved, returns), left_out = paired_outcomes(a, b)
    assert solved.test == returns.test == "paired permutation"
    assert solved.n == 4 and left_out == 0
    assert solved.difference == pytest.approx((1 + 0 + 0 + 2 / 3) / 4)
    repeated = [played(t, float(np.mean(v))) for t, v in values.items() if t != 1]
    assert returns.n == len(repeated) + 1


def test_other_tasks_are_refused():
    with pytest.raises(ConfigError, match="Play the same tasks"):
        paired_outcomes([played(0, 1.0)], [played(0, 1.0), played(1, 1.0)])
    other_seed = Outcome(0, 99, 0, episode_return=1.0)
    with pytest.raises(ConfigError, match="different"):
        paired_outcomes([played(0, 1.0)], [other_seed])
