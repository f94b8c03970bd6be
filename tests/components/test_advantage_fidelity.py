"""Fidelity of advantage estimates, and the exact advantages they are compared with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from component_helpers import random_table

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.estimator_fidelity import advantage_fidelity
from rllib_llm.data.turn_table import TurnTable

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import advantage_fidelity as benchmark


def test_fidelity_is_1_in_the_exact_order_and_minus_1_in_reverse():
    table = random_table(0)
    advantages = AdvantageEstimators(["anchor"])
    exact = advantages.advantages(table)
    assert advantage_fidelity(table, advantages, 3 * exact) == pytest.approx(1.0)
    assert advantage_fidelity(table, advantages, -exact) == pytest.approx(-1.0)


def test_only_turns_that_are_learnt_from_count():
    table = random_table(0)
    exact = AdvantageEstimators(["anchor"]).advantages(table)
    skipped = table.trajectories[0]
    skipped.is_trained = False
    table = TurnTable(table.trajectories)
    exact[: len(skipped)] = 1e6
    assert advantage_fidelity(
        table, AdvantageEstimators(["anchor"]), exact
    ) == pytest.approx(1.0)


def test_constant_advantages_have_no_order_and_lengths_must_be_equal():
    table = random_table(0, flat=True)
    exact = np.arange(len(table.owner))
    assert np.isnan(advantage_fidelity(table, AdvantageEstimators(["group"]), exact))
    with pytest.raises(ValueError, match=r"exact has shape \[3\]"):
        advantage_fidelity(table, AdvantageEstimators(["group"]), exact[:3])


@pytest.mark.parametrize("title", benchmark.GAMES)
def test_exact_advantages_sum_to_the_return_less_the_value(title):
    # Nothing but the policies is random, so that R - sum of A is the first value.
    game, advantages = benchmark.GAMES[title]
    table, exact = benchmark.play(game, seed=3)
    returns = [
        table.returns[table.episode == episode].mean()
        for episode in np.unique(table.episode)
    ]
    sums = np.bincount(table.episode[table.owner], exact)
    values = np.reshape(np.array(returns) - sums, (benchmark.TASKS, -1))
    np.testing.assert_allclose(values, values[:, :1].repeat(8, axis=1), atol=1e-9)
    assert ((values > 0) & (values < 1)).all() and np.ptp(values) > 0.001
    for estimators in advantages.values():
        assert advantage_fidelity(table, AdvantageEstimators(estimators), exact) > 0.1
