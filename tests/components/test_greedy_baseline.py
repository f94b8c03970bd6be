"""ReMax: each return less that of the greedy rollout of the same task."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import random_table

from rllib_llm import GRPOConfig, SelfPlayConfig
from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.data.turn_table import MissingGreedyReturn, TurnTable
from rllib_llm.errors import ConfigError

REMAX = {"name": "group", "baseline": "greedy", "scale": "none"}


def with_greedy(trajectories, rng):
    """Give the agents of each task a greedy return of their own."""
    known = {}
    for t in trajectories:
        key = t.task.group_id, t.agent_id
        t.greedy_return = known.setdefault(key, float(rng.normal()))
    return trajectories


def advantages(trajectories):
    return AdvantageEstimators([REMAX]).advantages(TurnTable(trajectories))


@pytest.mark.parametrize("seed", range(5))
def test_greedy_advantages_equal_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    every = with_greedy(random_table(seed).trajectories, rng)
    expected = []
    for t in every:
        total = 0.0
        for reward in t.rewards:
            total += reward
        for _ in t.rewards:
            expected.append(total - t.greedy_return)
    assert np.allclose(advantages(every), expected, atol=1e-9)


def test_only_the_greedy_rollout_is_compared_with():
    rng, seed = np.random.default_rng(0), 0
    every = with_greedy(random_table(seed).trajectories, rng)
    alone = np.concatenate([advantages([t]) for t in every])
    assert np.allclose(advantages(every), alone, atol=1e-12)
    order = rng.permutation(len(every))
    parts = TurnTable(every).split(advantages(every))
    shuffled = np.concatenate([parts[i] for i in order])
    assert np.allclose(advantages([every[i] for i in order]), shuffled, atol=1e-12)


def test_constant_rewards_do_not_matter():
    rng, seed = np.random.default_rng(1), 1
    every = with_greedy(random_table(seed).trajectories, rng)
    before = advantages(every)
    for t in every:
        t.rewards[-1] += 5.0
        t.greedy_return += 5.0
    assert np.allclose(advantages(every), before, atol=1e-9)
    for t in every:
        t.greedy_return = t.episode_return
    assert not advantages(every).any()


def test_a_missing_greedy_rollout_is_an_error():
    with pytest.raises(MissingGreedyReturn, match="a greedy rollout of the same task"):
        advantages(random_table().trajectories)
    assert (
        AdvantageEstimators([REMAX]).needs_greedy()
        and not AdvantageEstimators(["group"]).needs_greedy()
    )


def remax(config_class=GRPOConfig, env="frozen_lake-v0", **training):
    settings = {
        "advantage_estimator": [REMAX],
        "drop_zero_variance_groups": False,
        **training,
    }
    return config_class().environment(env).training(**settings)


@pytest.mark.parametrize(
    "config, message",
    [
        (remax(advantage_estimator=[{**REMAX, "scale": "group"}]), "neither deviation"),
        (remax(advantage_estimator=[{**REMAX, "by": "turn"}]), "neither deviation"),
        (remax(advantage_estimator=[{**REMAX, "unit": "turn"}]), "neither deviation"),
        (remax(drop_zero_variance_groups=True), "does not compare"),
        (remax().rollouts(reward_transforms=["centre"]), "reward_transforms"),
        (remax(SelfPlayConfig, "open_spiel/kuhn_poker-v0"), "depends on the opponent"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        config.validate()


def test_a_group_of_one_is_enough():
    config = remax().rollouts(group_size=1)
    config.validate()
    assert config.needs_greedy and not config.compares_rollouts
