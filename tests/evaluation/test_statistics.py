"""Intervals and pass@k, against scipy, enumeration and simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.success_statistics import (
    mean_of_tasks,
    pass_at_k,
    share_of_tasks,
    wilson_interval,
)


@pytest.mark.parametrize("successes, trials", [(0, 5), (3, 7), (7, 7), (41, 200)])
def test_wilson_is_scipys(successes, trials):
    theirs = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx(tuple(theirs), abs=1e-6)


@pytest.mark.parametrize("samples", [1, 4, 6])
def test_pass_at_k_is_the_share_of_all_subsets(samples):
    for solved in range(samples + 1):
        results = [True] * solved + [False] * (samples - solved)
        for k in range(1, samples + 1):
            tries = [any(s) for s in itertools.combinations(results, k)]
            assert pass_at_k(samples, solved, k) == pytest.approx(np.mean(tries))


@pytest.mark.parametrize("n, c, k", [(4, 5, 1), (4, 1, 5), (4, -1, 1), (4, 1, 0)])
def test_impossible_numbers_are_refused(n, c, k):
    with pytest.raises(ConfigError, match="must hold"):
        pass_at_k(n, c, k)


def test_one_sample_per_task_gives_the_usual_intervals():
    values = [1.0, 0.0, 1.0, 1.0, 0.0]
    share = share_of_tasks([[v] for v in values])
    assert (share.low, share.high) == pytest.approx(wilson_interval(3, 5))
    mean = mean_of_tasks([[v] for v in values])
    theirs = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (mean.low, mean.high) == pytest.approx(theirs)


def test_repeating_a_sample_teaches_nothing():
    rng = np.random.default_rng(0)
    once = [[float(v)] for v in rng.integers(2, size=12)]
    often = [v * 50 for v in once]
    for estimate in (mean_of_tasks, share_of_tasks):
        one, many = estimate(once), estimate(often)
        assert (one.mean, one.stderr) == pytest.approx((many.mean, many.stderr))
        assert one.high - one.low == pytest.approx(many.high - many.low, rel=0.06)
        assert many.samples == 50 * one.samples and many.tasks == one.tasks


def test_independent_samples_count_in_full():
    rng = np.random.default_rng(1)
    values = (rng.random((400, 8)) < 0.3).astype(float)
    share = share_of_tasks(values.tolist())
    low, high = wilson_interval(values.sum(), values.size)
    assert share.high - share.low == pytest.approx(high - low, rel=0.1)


def test_all_alike_still_leaves_doubt():
    share = share_of_tasks([[1.0] * 8] * 5)
    assert (share.low, share.high) == pytest.approx(wilson_interval(5, 5))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Tasks of different difficulty, four samples each: what naive intervals miss."""
    rng = np.random.default_rng(2)
    difficulty = rng.beta(0.5, 0.5, size=(600, 25, 1))  # mean 0.5
    draws = (rng.random((600, 25, 4)) < difficulty).astype(float)
    hits = naive = 0
    for draw in draws:
        share = share_of_tasks(draw.tolist())
        hits += share.low <= 0.5 <= share.high
        low, high = wilson_interval(draw.sum(), draw.size)
        naive += low <= 0.5 <= high
    assert 0.92 <= hits / 600 <= 0.98
    assert naive / 600 < 0.85


def test_tasks_without_values_do_not_count():
    assert mean_of_tasks([[1.0, 3.0], [], [4.0]]).mean == 3.0
    with pytest.raises(ConfigError, match="no value"):
        mean_of_tasks([[], []])
    assert mean_of_tasks([[2.0]]).low is None
    with pytest.raises(ConfigError, match="must lie in"):
        share_of_tasks([[1.5]])
