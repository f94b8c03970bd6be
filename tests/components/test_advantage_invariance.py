"""Invariances of every advantage estimator of the registry."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import (
    ADVANTAGE_ESTIMATORS,
    OF_GROUPS,
    ORDERLESS,
    advantages_of,
    random_table,
    rearranged,
    spec,
    trajectory,
)

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.data.turn_table import TurnTable


@pytest.mark.parametrize("name", ORDERLESS)
def test_the_order_of_trajectories_does_not_matter(name):
    table = random_table(7)
    order = np.random.default_rng(0).permutation(len(table))
    shuffled = rearranged(table, order)
    before = table.split(advantages_of(table, name))
    after = shuffled.split(advantages_of(shuffled, name))
    for place, original in enumerate(order):
        np.testing.assert_allclose(after[place], before[original], atol=1e-9)


@pytest.mark.parametrize("similarity", [0.5, 0.9])
def test_likeness_does_not_depend_on_the_order_either(similarity):
    observations = ["red door", "rod door", "rod dune", "bed dune", "a long wall"]
    rng = np.random.default_rng(1)
    table = TurnTable(
        trajectory(
            rollout=i, rewards=[rng.random()], observations=[observations[i % 5]]
        )
        for i in range(10)
    )
    order = rng.permutation(10)
    found = advantages_of(table, "anchor", similarity=similarity)
    shuffled = advantages_of(rearranged(table, order), "anchor", similarity=similarity)
    np.testing.assert_allclose(shuffled, found[order], atol=1e-12)


@pytest.mark.parametrize("name", OF_GROUPS)
def test_other_tasks_do_not_matter(name):
    table = random_table(8)
    whole = table.split(advantages_of(table, name))
    for task in range(3):
        mine = [i for i in range(len(table)) if table.task[i] == task]
        alone = rearranged(table, mine)
        for i, part in zip(mine, alone.split(advantages_of(alone, name)), strict=True):
            np.testing.assert_allclose(part, whole[i], atol=1e-9)


@pytest.mark.parametrize("name", OF_GROUPS)
def test_a_group_of_one_has_nothing_to_be_compared_with(name):
    one = TurnTable([trajectory(rewards=[0.3, 0.9])])
    settings = {"proposer": "agent_0"} if name == "hierarchical" else {}
    assert not advantages_of(one, name, **settings).any()
    assert AdvantageEstimators([spec(name)]).compares_rollouts()


@pytest.mark.parametrize("name", sorted(set(ADVANTAGE_ESTIMATORS) - set(OF_GROUPS)))
def test_other_estimators_give_single_rollouts_advantages(name):
    assert not AdvantageEstimators([spec(name)]).compares_rollouts()


@pytest.mark.parametrize("name", sorted(set(OF_GROUPS) - {"anchor"}))
def test_equal_rollouts_get_exactly_nothing(name):
    table = random_table(9, flat=True)
    assert not advantages_of(table, name).any()
    assert not len(AdvantageEstimators([spec(name)]).tasks_with_advantages(table))


def test_anchor_tells_places_apart_where_returns_are_equal():
    # All succeed; the one that comes back to the start loses time there.
    direct = trajectory(rollout=0, rewards=[0, 1], observations=["start", "door"])
    detour = trajectory(
        rollout=1, rewards=[0, 0, 0, 1], observations=["start", "door", "start", "door"]
    )
    table = TurnTable([direct, detour])
    assert not advantages_of(table, "group").any()
    found = table.split(advantages_of(table, "anchor", discount=0.9))
    assert found[0][0] > 0 > found[1][0] and found[1][1] < 0
    assert AdvantageEstimators(["group", "anchor"]).tasks_with_advantages(
        table
    ).tolist() == [0]


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_an_empty_table_gives_no_advantages(name):
    assert advantages_of(TurnTable([]), name).shape == (0,)


@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_trying_out_leaves_no_trace(name):
    advantages = AdvantageEstimators([spec(name)])
    before = advantages.get_state()
    advantages.try_out()
    advantages.tasks_with_advantages(random_table(0))
    assert advantages.get_state() == before


def test_weights_sum_and_transforms_follow_in_order():
    table = random_table(3)
    summed = AdvantageEstimators(
        [spec("group", weight=0.5), spec("anchor", weight=2.0)],
        [{"name": "clip", "low": -0.5, "high": 0.5}, "positive_only"],
    )
    raw = 0.5 * advantages_of(table, "group") + 2.0 * advantages_of(table, "anchor")
    np.testing.assert_allclose(summed.advantages(table), np.clip(raw, 0, 0.5))
    without = AdvantageEstimators([spec("group"), spec("anchor", weight=0.0)])
    np.testing.assert_array_equal(
        without.advantages(table), advantages_of(table, "group")
    )
