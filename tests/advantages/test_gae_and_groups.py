"""Advantages against slow loops written from the papers, and their edges."""

import numpy as np
import pytest

from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.group_relative import (
    group_advantages,
    group_reward_std,
    zero_variance_groups,
)
from rllib_llm.advantages.whitening import masked_moments, whiten, whiten_with_moments

ATOL = 1e-9


def slow_gae(rewards, values, gamma, lambda_, bootstrap_value):
    """Sum the definition directly: A_t = sum_l prod(gamma * lambda) * delta."""
    following = [*values[1:], bootstrap_value]
    advantages = []
    for t in range(len(rewards)):
        total, factor = 0.0, 1.0
        for i in range(t, len(rewards)):
            total += factor * (rewards[i] + gamma[i] * following[i] - values[i])
            factor *= gamma[i] * lambda_[i]
        advantages.append(total)
    return np.array(advantages)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("constant", [True, False])
def test_gae_equals_its_definition(seed, constant):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    rewards, values = rng.normal(size=n), rng.normal(size=n)
    shape = () if constant else n
    gamma, lam, lam_v = (rng.uniform(0.3, 1.0, size=shape) for _ in range(3))
    advantages, targets = token_gae(
        rewards,
        values,
        gamma=gamma,
        lambda_=lam,
        lambda_critic=lam_v,
        bootstrap_value=0.7,
    )
    g, a, v = (np.broadcast_to(x, n) for x in (gamma, lam, lam_v))
    expected = slow_gae(rewards, values, g, a, 0.7)
    expected_targets = values + slow_gae(rewards, values, g, v, 0.7)
    np.testing.assert_allclose(advantages, expected, atol=ATOL)
    np.testing.assert_allclose(targets, expected_targets, atol=ATOL)
    assert advantages.dtype == targets.dtype == np.float64


def test_gae_constants_equal_arrays():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=50), rng.normal(size=50)
    scalars = token_gae(rewards, values, gamma=0.9, lambda_=0.8)
    arrays = token_gae(
        rewards, values, gamma=np.full(50, 0.9), lambda_=np.full(50, 0.8)
    )
    # A last lambda that nothing follows forces the loop without changing the result.
    lam = np.append(np.full(49, 0.8), 0.1)
    looped = token_gae(rewards, values, gamma=0.9, lambda_=lam)
    for got in (arrays, looped):
        np.testing.assert_allclose(got, scalars, atol=ATOL)


def test_gae_lambda_one_without_values_is_reward_to_go():
    rewards = np.array([0.0, -0.1, 0.0, 1.0])
    advantages, targets = token_gae(rewards, np.zeros(4), gamma=1.0, lambda_=1.0)
    np.testing.assert_allclose(advantages, [0.9, 0.9, 1.0, 1.0], atol=ATOL)
    np.testing.assert_allclose(targets, advantages, atol=ATOL)


def test_gae_lambda_zero_is_one_step_td():
    rewards, values = np.array([0.5, 1.0]), np.array([2.0, 3.0])
    advantages, targets = token_gae(
        rewards, values, gamma=0.9, lambda_=0.0, bootstrap_value=4.0
    )
    np.testing.assert_allclose(advantages, [0.5 + 2.7 - 2, 1 + 3.6 - 3], atol=ATOL)
    np.testing.assert_allclose(targets, [0.5 + 2.7, 1 + 3.6], atol=ATOL)


def test_gae_separate_critic_lambda_moves_targets_only():
    rng = np.random.default_rng(1)
    rewards, values = rng.normal(size=9), rng.normal(size=9)
    plain = token_gae(rewards, values, gamma=1.0, lambda_=0.5)
    split = token_gae(rewards, values, gamma=1.0, lambda_=0.5, lambda_critic=1.0)
    np.testing.assert_allclose(split[0], plain[0], atol=ATOL)
    np.testing.assert_allclose(split[1], rewards[::-1].cumsum()[::-1], atol=ATOL)


def test_gae_of_no_tokens_is_empty():
    advantages, targets = token_gae([], [], gamma=1.0, lambda_=0.9)
    assert advantages.shape == targets.shape == (0,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 1.1}, "gamma is 1.1"),
        ({"lambda_": -0.5}, "lambda_ is -0.5"),
        ({"lambda_critic": np.nan}, "lambda_critic is nan"),
        ({"gamma": np.ones(2)}, r"gamma has shape \[2\]"),
        ({"values": np.zeros(2)}, r"rewards \[3\], values \[2\]"),
        ({"values": np.array([0.0, np.nan, 0.0])}, r"values\[1\] is nan"),
        ({"rewards": np.array([0.0, 0.0, np.inf])}, r"rewards\[2\] is inf"),
        ({"rewards": np.zeros((3, 1))}, r"rewards has shape \[3, 1\]"),
        ({"bootstrap_value": np.nan}, r"bootstrap_value\[0\] is nan"),
    ],
)
def test_gae_errors_name_the_value(changed, message):
    arguments = {
        "rewards": np.zeros(3),
        "values": np.zeros(3),
        "gamma": 1.0,
        "lambda_": 0.9,
    } | changed
    with pytest.raises(ValueError, match=message):
        token_gae(**arguments)


def slow_group_advantages(returns, group_ids, baseline, scale, eps):
    advantages = []
    for i, own in enumerate(group_ids):
        group = [r for r, g in zip(returns, group_ids, strict=True) if g == own]
        others = [
            r
            for j, (r, g) in enumerate(zip(returns, group_ids, strict=True))
            if g == own and j != i
        ]
        if not others:
            advantages.append(0.0)
            continue
        pool = group if baseline == "mean" else others
        divisor = 1.0
        if scale != "none":
            spread = group if scale == "group" else returns
            divisor = np.std(spread, ddof=1) + eps
        advantages.append((returns[i] - sum(pool) / len(pool)) / divisor)
    return np.array(advantages)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_group_advantages_equal_the_loop(seed, baseline, scale):
    rng = np.random.default_rng(seed)
    group_ids = rng.integers(0, 6, size=20)
    returns = rng.normal(size=20)
    got = group_advantages(returns, group_ids, baseline=baseline, scale=scale)
    expected = slow_group_advantages(returns, group_ids, baseline, scale, 1e-6)
    np.testing.assert_allclose(got, expected, atol=ATOL)
    for group in set(group_ids):
        assert abs(got[group_ids == group].sum()) < ATOL
    order = rng.permutation(20)
    permuted = group_advantages(
        returns[order], group_ids[order], baseline=baseline, scale=scale
    )
    np.testing.assert_allclose(permuted, got[order], atol=ATOL)


def test_leave_one_out_is_a_multiple_of_the_mean_baseline():
    returns = np.random.default_rng(0).normal(size=12)
    group_ids = ["a"] * 4 + ["b"] * 8
    mean = group_advantages(returns, group_ids)
    loo = group_advantages(returns, group_ids, baseline="leave_one_out")
    factor = np.array([4 / 3] * 4 + [8 / 7] * 8)
    np.testing.assert_allclose(loo, factor * mean, atol=ATOL)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_group_of_one_and_equal_returns_give_exactly_zero(baseline, scale):
    returns = np.array([5.0, 0.1, 0.1, 0.1, 1e9 + 0.1, 1e9 + 0.1, 1e9 + 0.1])
    got = group_advantages(
        returns, [7, 8, 8, 8, 9, 9, 9], baseline=baseline, scale=scale
    )
    assert (got == 0.0).all()


def test_no_baseline_returns_the_returns():
    returns = np.array([1.0, 2.0, 4.0])
    got = group_advantages(returns, [0, 0, 1], baseline="none")
    assert (got == returns).all()
    assert group_advantages([], [], scale="batch").shape == (0,)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"baseline": "median"}, "baseline is 'median'.*mean"),
        ({"scale": "grup"}, "Did you mean 'group'"),
        ({"baseline": "none", "scale": "batch"}, "scale is 'batch' with baseline"),
        ({"eps": 0.0}, "eps is 0.0"),
        ({"returns": [1.0, np.nan]}, r"returns\[1\] is nan"),
        ({"group_ids": [0]}, r"returns \[2\], group_ids \[1\]"),
    ],
)
def test_group_advantages_errors_name_the_value(changed, message):
    arguments = {"returns": [1.0, 2.0], "group_ids": [0, 0]} | changed
    with pytest.raises(ValueError, match=message):
        group_advantages(**arguments)


def test_group_stds_and_zero_variance_groups():
    returns = [1.0, 3.0, 0.5, 0.5, 9.0]
    group_ids = ["a", "a", "b", "b", "c"]
    stds = group_reward_std(returns, group_ids)
    assert stds == pytest.approx({"a": np.sqrt(2.0), "b": 0.0, "c": 0.0})
    assert zero_variance_groups(returns, group_ids) == {"b", "c"}
    assert zero_variance_groups(returns, group_ids, tolerance=2.0) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="tolerance is -1"):
        zero_variance_groups(returns, group_ids, tolerance=-1)


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whiten_ignores_masked_entries_and_splits(shift_mean):
    rng = np.random.default_rng(0)
    values, mask = rng.normal(3.0, 2.0, size=(6, 5)), rng.random((6, 5)) < 0.6
    clean = values[mask]
    values[~mask] = np.nan
    whole = whiten(values, mask, shift_mean=shift_mean)
    expected = (clean - clean.mean()) / (clean.std(ddof=1) + 1e-8)
    expected += 0.0 if shift_mean else clean.mean()
    np.testing.assert_allclose(whole[mask], expected, atol=ATOL)
    assert (whole[~mask] == 0.0).all()

    parts = [masked_moments(values[i : i + 2], mask[i : i + 2]) for i in (0, 2, 4)]
    totals = tuple(map(sum, zip(*parts, strict=True)))
    assert totals[0] == mask.sum()
    components = [
        whiten_with_moments(
            values[i : i + 2], mask[i : i + 2], totals, shift_mean=shift_mean
        )
        for i in (0, 2, 4)
    ]
    np.testing.assert_allclose(np.concatenate(components), whole, atol=ATOL)


def test_whiten_edges_are_finite():
    values, none = np.full((2, 2), 0.3), np.zeros((2, 2), dtype=bool)
    assert (whiten(values, none) == 0.0).all()
    assert (whiten_with_moments(values, none, (0, 0.0, 0.0)) == 0.0).all()
    assert (whiten(values, ~none) == 0.0).all()
    np.testing.assert_allclose(whiten(values, ~none, shift_mean=False), 0.3)
    one = whiten([4.0], [True])
    assert one.tolist() == [0.0]
    np.testing.assert_allclose(whiten([4.0], [True], mean=2.0, std=4.0), [0.5])
    with pytest.raises(ValueError, match="mask has dtype int"):
        whiten([1.0], [1])
    with pytest.raises(ValueError, match="std is -1"):
        whiten([1.0], [True], std=-1.0)
    with pytest.raises(ValueError, match="eps is 0"):
        whiten([1.0], [True], eps=0)
    with pytest.raises(ValueError, match="where the mask is True"):
        masked_moments([np.inf], [True])
