"""Advantages of a critic of turns, mixed with the return."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.scored import turn_critic
from rllib_llm.data.turn_table import MissingScores, TurnTable, example_table
from rllib_llm.errors import ConfigError


def random_table(sizes=(1, 4, 2, 7, 1, 3)):
    """Trajectories of other lengths, with rewards in every turn and scores."""
    rng = np.random.default_rng(0)
    model = example_table(("a",)).trajectories[0]

    def one(number, turns):
        return dataclasses.replace(
            model,
            episode=number,
            observations=["o"] * turns,
            completions=["c"] * turns,
            rewards=rng.normal(size=turns).tolist(),
            steps=list(range(turns)),
            num_tokens=[1] * turns,
            invalid=[False] * turns,
            infos=[{}] * turns,
            scores=rng.normal(size=turns).tolist(),
        )

    return TurnTable([one(number, turns) for number, turns in enumerate(sizes)])


def slow_advantages(trajectory, lambda_):
    """Return the advantage of each turn, counted from 1 as in the formula."""
    last, advantages = len(trajectory), []
    for h in range(1, last + 1):
        weight, to_go = 1.0, 0.0
        for _ in range(last - h):
            weight *= lambda_
        for later in range(h, last + 1):
            to_go += trajectory.rewards[later - 1]
        advantages.append(weight * to_go + (1 - weight) * trajectory.scores[h - 1])
    return advantages


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.5, 1.0])
def test_mixed_advantages_against_a_loop(lambda_):
    table = random_table()
    found = turn_critic(table, lambda_=lambda_)
    assert found.dtype == np.float64
    for trajectory, advantages in zip(
        table.trajectories, table.split(found), strict=True
    ):
        expected = slow_advantages(trajectory, lambda_)
        np.testing.assert_allclose(advantages, expected, rtol=0, atol=1e-12)


def test_the_limits_of_the_mixture():
    table = random_table()
    np.testing.assert_array_equal(turn_critic(table), table.scores)
    np.testing.assert_allclose(turn_critic(table, lambda_=1.0), table.to_go())
    mixed = table.split(turn_critic(table, lambda_=0.5))
    # The outcome alone judges the last turn.
    assert [a[-1] for a in mixed] == [t.rewards[-1] for t in table.trajectories]


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_earlier_rewards_change_no_advantage(lambda_):
    table = random_table(sizes=(4,))
    before = turn_critic(table, lambda_=lambda_)
    table.trajectories[0].rewards[0] += 5.0
    after = turn_critic(TurnTable(table.trajectories), lambda_=lambda_)
    np.testing.assert_array_equal(after[1:], before[1:])


def test_trajectories_are_independent():
    table = random_table()
    whole = table.split(turn_critic(table, lambda_=0.5))
    order = [3, 0, 5, 1, 4, 2]
    other = TurnTable([table.trajectories[i] for i in order])
    for place, advantages in zip(
        order, other.split(turn_critic(other, lambda_=0.5)), strict=True
    ):
        np.testing.assert_array_equal(advantages, whole[place])


def test_without_trajectories_there_are_no_advantages():
    assert turn_critic(TurnTable([]), lambda_=0.5).shape == (0,)


@pytest.mark.parametrize("lambda_", [-0.1, 1.5, float("nan")])
def test_a_weight_outside_the_unit_interval_is_refused(lambda_):
    with pytest.raises(ValueError, match="lambda_ is .* must lie in"):
        turn_critic(random_table(), lambda_=lambda_)
    spec = {"name": "turn_critic", "lambda_": lambda_}
    with pytest.raises(ConfigError, match="lambda_"):
        AdvantageEstimators([spec]).try_out(("a",))


def test_without_scores_there_is_no_advantage():
    table = random_table()
    table.trajectories[0].scores = None
    with pytest.raises(MissingScores, match="Set scorer.loss"):
        turn_critic(table, lambda_=0.5)
