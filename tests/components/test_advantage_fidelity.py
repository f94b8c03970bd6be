"""The fidelity of credit, and the exact advantages it is held against."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from component_helpers import random_table

from rllib_llm.advantages.estimators.combine import Credit
from rllib_llm.advantages.estimators.estimator_fidelity import credit_fidelity
from rllib_llm.data.turn_table import TurnTable

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import credit_fidelity as benchmark


def test_credit_in_the_right_order_is_1_and_in_reverse_minus_1():
    table = random_table(0)
    credit = Credit(["anchor"])
    exact = credit.advantages(table)
    assert credit_fidelity(table, credit, 3 * exact) == pytest.approx(1.0)
    assert credit_fidelity(table, credit, -exact) == pytest.approx(-1.0)


def test_only_turns_that_are_learnt_from_count():
    table = random_table(0)
    exact = Credit(["anchor"]).advantages(table)
    skipped = table.trajectories[0]
    skipped.is_trained = False
    table = TurnTable(table.trajectories)
    exact[: len(skipped)] = 1e6
    assert credit_fidelity(table, Credit(["anchor"]), exact) == pytest.approx(1.0)


def test_constant_credit_has_no_order_and_lengths_must_agree():
    table = random_table(0, flat=True)
    exact = np.arange(len(table.owner))
    assert np.isnan(credit_fidelity(table, Credit(["group"]), exact))
    with pytest.raises(ValueError, match=r"exact has shape \[3\]"):
        credit_fidelity(table, Credit(["group"]), exact[:3])


@pytest.mark.parametrize("title", benchmark.GAMES)
def test_exact_advantages_sum_to_the_return_less_the_value(title):
    # Nothing but the policies is random, so that R - sum of A is the first value.
    game, credits = benchmark.GAMES[title]
    table, exact = benchmark.play(game, seed=3)
    returns = [
        table.returns[table.episode == episode].mean()
        for episode in np.unique(table.episode)
    ]
    sums = np.bincount(table.episode[table.owner], exact)
    values = np.reshape(np.array(returns) - sums, (benchmark.TASKS, -1))
    np.testing.assert_allclose(values, values[:, :1].repeat(8, axis=1), atol=1e-9)
    assert ((values > 0) & (values < 1)).all() and np.ptp(values) > 0.001
    for estimators in credits.values():
        assert credit_fidelity(table, Credit(estimators), exact) > 0.1
