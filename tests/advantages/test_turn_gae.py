"""GAE over turns, over two levels, and with a lambda that follows the length."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.turn_gae import bilevel_gae, length_adaptive_lambda, turn_gae


def episode(seed, turns=4):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, size=turns)
    ends = np.zeros(lengths.sum(), bool)
    ends[lengths.cumsum() - 1] = True
    rewards = np.where(ends, rng.normal(size=len(ends)), 0.0)
    return rewards, rng.normal(size=len(ends)), ends


def slow_turns(rewards, values, ends, gamma, lambda_, bootstrap):
    """Turn by turn, from the last one back."""
    starts = [0, *(np.flatnonzero(ends)[:-1] + 1)]
    stops = [*starts[1:], len(ends)]
    advantages, targets = np.zeros(len(ends)), np.zeros(len(ends))
    following, value_after = 0.0, bootstrap
    for start, stop in reversed(list(zip(starts, stops, strict=True))):
        delta = sum(rewards[start:stop]) + gamma * value_after - values[start]
        following = delta + gamma * lambda_ * following
        advantages[start:stop] = following
        targets[start:stop] = values[start] + following
        value_after = values[start]
    return advantages, targets


def slow_bilevel(rewards, values, ends, g_turn, l_turn, g_token, l_token, bootstrap):
    """Last tokens of turns first, then backwards inside each turn."""
    n = len(ends)
    advantages = np.zeros(n)
    following, value_after = 0.0, bootstrap
    for i in reversed(range(n)):
        if ends[i]:
            delta = rewards[i] + g_turn * value_after - values[i]
            following = delta + g_turn * l_turn * following
            advantages[i], value_after = following, values[i]
    for i in reversed(range(n)):
        if not ends[i]:
            delta = rewards[i] + g_token * values[i + 1] - values[i]
            advantages[i] = delta + g_token * l_token * advantages[i + 1]
    return advantages, values + advantages


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bootstrap", [0.0, 0.7])
def test_turns_are_the_steps(seed, bootstrap):
    rewards, values, ends = episode(seed)
    found = turn_gae(
        rewards, values, ends, gamma=0.9, lambda_=0.8, bootstrap_value=bootstrap
    )
    expected = slow_turns(rewards, values, ends, 0.9, 0.8, bootstrap)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bootstrap", [0.0, 0.7])
def test_two_levels(seed, bootstrap):
    rewards, values, ends = episode(seed)
    found = bilevel_gae(
        rewards,
        values,
        ends,
        gamma=0.9,
        lambda_=0.8,
        gamma_token=0.99,
        lambda_token=0.7,
        bootstrap_value=bootstrap,
    )
    expected = slow_bilevel(rewards, values, ends, 0.9, 0.8, 0.99, 0.7, bootstrap)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_values_every_token_gets_what_its_turn_returns():
    rewards, _, ends = episode(3)
    zeros = np.zeros(len(ends))
    settings = {"gamma": 0.9, "lambda_": 1.0}
    by_turn, _ = turn_gae(rewards, zeros, ends, **settings)
    both, _ = bilevel_gae(rewards, zeros, ends, **settings)
    np.testing.assert_allclose(both, by_turn)


def test_a_turn_without_a_reward_is_a_turn():
    """Told by its reward, as in the published code, the first one would have no end."""
    ends = np.array([False, True, False, True])
    rewards, values = np.array([0, 0, 0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    found, _ = bilevel_gae(rewards, values, ends, gamma=0.5, lambda_=1.0)
    np.testing.assert_allclose(found[1], 0 + 0.5 * 0.4 - 0.2 + 0.5 * (1 - 0.4))


@pytest.mark.parametrize("estimate", [turn_gae, bilevel_gae])
def test_targets_may_have_a_lambda_of_their_own(estimate):
    rewards, values, ends = episode(1)
    low, target = estimate(
        rewards, values, ends, gamma=0.9, lambda_=0.5, lambda_critic=0.9
    )
    _, expected = (
        estimate(rewards, values, ends, gamma=0.9, lambda_=0.9)
        if (estimate is turn_gae)
        else estimate(rewards, values, ends, gamma=0.9, lambda_=0.9, lambda_token=0.9)
    )
    np.testing.assert_allclose(target, expected)
    assert not np.allclose(values + low, target)


@pytest.mark.parametrize("estimate", [turn_gae, bilevel_gae])
def test_one_turn_of_one_token_is_gae(estimate):
    args = np.array([2.0]), np.array([0.5])
    found = estimate(*args, np.array([True]), gamma=0.9, lambda_=0.8, bootstrap_value=1)
    np.testing.assert_allclose(
        found, token_gae(*args, gamma=0.9, lambda_=0.8, bootstrap_value=1)
    )


@pytest.mark.parametrize("estimate", [turn_gae, bilevel_gae])
def test_no_tokens_give_no_advantages(estimate):
    none = np.zeros(0)
    found = estimate(none, none, np.zeros(0, bool), gamma=0.9, lambda_=0.8)
    assert [len(each) for each in found] == [0, 0]


def test_the_last_token_must_end_a_turn():
    with pytest.raises(ValueError, match="must end a turn"):
        turn_gae(np.zeros(2), np.zeros(2), np.zeros(2, bool), gamma=1, lambda_=1)


@pytest.mark.parametrize(
    "length, expected", [(1, 0.0), (20, 0.0), (40, 0.5), (200, 0.9), (2000, 0.99)]
)
def test_lambda_follows_the_length(length, expected):
    assert length_adaptive_lambda(length, 0.05) == pytest.approx(expected, abs=1e-12)


def test_the_weights_of_later_errors_sum_to_a_share_of_the_length():
    lambda_ = length_adaptive_lambda(1000, 0.05)
    total = sum(lambda_**k for k in range(5000))
    assert total == pytest.approx(0.05 * 1000, rel=1e-6)
