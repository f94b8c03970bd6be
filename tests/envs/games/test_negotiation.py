"""Negotiation: offers, deals, and the Pareto frontier."""

import itertools

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.envs.games.bargain import Pool


def table(counts=(2, 1), alice=(3, 4), bob=(5, 0), **options):
    """A game with known counts and values; returns the MultiAgentAdapter."""
    env = MultiAgentAdapter(make_env("negotiation-v0", options))
    env.reset(seed=0)
    env.unwrapped.pool = Pool(counts, (alice, bob))
    return env


def test_accepting_rewards_both_with_their_shares():
    env = table()
    step = env.step({"alice_0": "I would keep 0 1"})
    assert step.observations["bob_0"] == (
        "Pool: 2 books at 5, 1 hat at 0. alice_0 leaves you 2 0. Accept, or keep?"
    )
    step = env.step({"bob_0": "fine, accept"})
    assert dict(step.rewards) == {"alice_0": 0.4, "bob_0": 1.0}
    assert step.terminated == ("alice_0", "bob_0") and step.success is True
    assert step.metrics == {"deal": 1.0, "pareto": 1.0, "joint_worth": 1.0}


def test_wasteful_deals_are_not_pareto_optimal():
    env = table()
    env.step({"alice_0": "keep 2 0"})  # the hat is worth nothing to bob
    step = env.step({"bob_0": "accept"})
    assert dict(step.rewards) == {"alice_0": 0.6}
    assert step.success is False and step.metrics["pareto"] == 0.0
    assert step.metrics["joint_worth"] == pytest.approx(0.6 / 1.4)


def test_counter_offers_show_the_readers_share():
    env = table()
    env.step({"alice_0": "keep 2 1"})
    step = env.step({"bob_0": "keep 1 0"})
    assert step.observations == {"alice_0": "bob_0 leaves you 1 1. Accept, or keep?"}
    step = env.step({"alice_0": "accept"})
    assert dict(step.rewards) == {"alice_0": 0.7, "bob_0": 0.5}


def test_one_offer_too_many_ends_without_a_deal():
    env = table(offers=2)
    env.step({"alice_0": "keep 2 1"})
    assert not env.step({"bob_0": "keep 2 1"}).is_over
    step = env.step({"alice_0": "keep 2 1"})
    assert step.is_over and step.rewards == [] and step.success is False
    assert step.stop_reason == "terminated" and step.metrics["deal"] == 0.0


def test_values_of_the_other_are_hidden():
    texts = set()
    for bob in ((5, 0), (0, 10)):
        env = table(bob=bob)
        env.step({"alice_0": "keep 0 1"})
        step = env.step({"bob_0": "keep 1 1"})
        texts.add(step.observations["alice_0"])
    assert len(texts) == 1


def test_talk_passes_the_whole_text_on():
    env = table(talk=True)
    step = env.step({"alice_0": "The hat\nis mine: keep 0 1"})
    assert (
        "alice_0: The hat is mine: keep 0 1 alice_0 leaves"
        in (step.observations["bob_0"])
    )
    step = env.step({"bob_0": "x" * 500 + " keep 2 0"})
    assert len(step.observations["alice_0"]) < 260


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("keep 1 0", (1, 0)),
        ("keep 2 1 or rather keep 0 1", (0, 1)),
        ("keep 3 0", None),
        ("keep 1", None),
        ("keep 1 1 1", None),
        ("accept", None),  # nothing was offered yet
        ("keep 9 9 9 9", None),
        ("unacceptable", None),
    ],
)
def test_only_possible_offers_are_read(text, action):
    assert table().unwrapped.parse("alice_0", text) == action


def test_pools_are_worth_ten_to_both():
    env = make_env("negotiation-v0", {"kinds": 3})
    for seed in range(100):
        env.reset(seed=seed)
        assert len(env.pool.counts) == 3
        for values in env.pool.values:
            assert np.dot(values, env.pool.counts) == 10


def test_the_expert_takes_little_rather_than_nothing():
    env, rng = table(offers=2), np.random.default_rng(0)
    bob = env.unwrapped.expert_action
    env.step({"alice_0": "keep 2 1"})
    assert bob("bob_0", rng) == "keep 2 0"
    env.step({"bob_0": "keep 2 1"})
    assert bob("alice_0", rng) == "accept"


def test_the_expert_strikes_nashs_bargain():
    for seed in range(50):
        env = MultiAgentAdapter(make_env("negotiation-v0", {"kinds": 3}))
        step, rng = env.reset(seed=seed), np.random.default_rng(0)
        game = env.unwrapped
        splits = itertools.product(*(range(c + 1) for c in game.pool.counts))
        best = max(np.prod(game.pool.both(split)) for split in splits)
        while not step.is_over:
            (agent,) = step.observations
            step = env.step({agent: game.expert_action(agent, rng)})
        granted = dict(step.rewards)
        product = granted.get("alice_0", 0.0) * granted.get("bob_0", 0.0)
        assert product == pytest.approx(best) and step.success
