"""Sums of advantage estimators: weights, order, and state."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import random_table, trajectory

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.data.turn_table import TurnTable


def played(task: int, returns: list[float]) -> TurnTable:
    return TurnTable(
        [trajectory(task, i, rewards=[value]) for i, value in enumerate(returns)]
    )


@pytest.mark.parametrize(
    ("statistic", "of"), [("mean", np.mean), ("median", np.median)]
)
def test_the_history_is_read_before_it_takes_the_groups_in(statistic, of):
    advantages = AdvantageEstimators(
        [{"name": "history", "statistic": statistic, "window": 2}]
    )
    means: list[float] = []
    for task, returns in enumerate([[0.0, 2.0], [4.0, 8.0], [1.0, 0.0], [3.0, 5.0]]):
        baseline = of(means[-2:] or [np.mean(returns)])
        found = advantages.advantages(played(task, returns))
        assert found.tolist() == [value - baseline for value in returns]
        means.append(float(np.mean(returns)))


def test_estimators_are_summed_by_weight_and_transforms_follow_in_order():
    table = random_table(1)
    group, outcome = (
        AdvantageEstimators([name]).advantages(table) for name in ("group", "return")
    )
    both = AdvantageEstimators(
        [{"name": "group", "weight": 0.5}, {"name": "return", "weight": -2}]
    )
    expected = 0.5 * group - 2 * outcome
    np.testing.assert_allclose(both.advantages(table), expected)

    def add(table, advantages):
        return advantages + 1.0

    def double(table, advantages):
        return 2.0 * advantages

    for transforms, then in (
        ([add, double], 2 * (group + 1)),
        ([double, add], 2 * group + 1),
    ):
        found = AdvantageEstimators(["group"], transforms).advantages(table)
        np.testing.assert_allclose(found, then)


def test_tasks_with_advantages_leaves_the_state_unchanged():
    advantages, other = (
        AdvantageEstimators(["history"]),
        AdvantageEstimators(["history"]),
    )
    advantages.tasks_with_advantages(played(0, [5.0, 9.0]))
    assert advantages.get_state() == other.get_state()
    table = played(1, [1.0, 2.0])
    assert (advantages.advantages(table) == other.advantages(table)).all()
