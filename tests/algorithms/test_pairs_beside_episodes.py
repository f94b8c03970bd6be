"""Pairs of an iteration's episodes beside its policy loss: ``preferences``."""

from __future__ import annotations

import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    gradients,
    make_config,
    moved,
    update,
)
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from side_by_side import call_side_by_side

from rllib_llm import GRPO, GRPOConfig, LLMPPOConfig, MARFTConfig, PrefConfig
from rllib_llm.algorithms.driver.mixed_pairs import MixesPairs
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.data.episode_data import PAIR, SAMPLED, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import StopPolicy
from rllib_llm.errors import ConfigError

DPO = {"name": "dpo", "beta": 0.5}


def config_of(preferences=None, **training):
    config = make_config(GRPOConfig, **{"micro_batch_tokens": 64, **training})
    return config.preferences(**{"loss": DPO, **(preferences or {})})


def played(count=6):
    episodes = [fake_episode(n, turns=1 + n % 3) for n in range(count)]
    for n, episode in enumerate(episodes):
        episode_data(episode).advantage = (-1.0) ** n * (1 + 0.3 * n)
    return episodes


def paired(episodes, source=PAIR):
    pairs = [PreferencePair(*episodes[i : i + 2]) for i in range(0, len(episodes), 2)]
    for pair in pairs:
        for part in (pair, *pair.agent_episodes.values()):
            episode_data(part).source = source
    return pairs


def of_policy(**training):
    plain = make_config(GRPOConfig, **{"micro_batch_tokens": 64, **training})
    return gradients(moved(plain), played())


def of_pairs(loss=DPO, nll_weight=0.0):
    config = make_config(PrefConfig, preference_loss=loss, nll_weight=nll_weight)
    return gradients(moved(config), paired(played(), SAMPLED))


@pytest.mark.parametrize("tokens", [None, 48])
@pytest.mark.parametrize("policy_loss", [None, "cispo"])
def test_ppo_keeps_its_advantages_and_adds_the_pairs(tokens, policy_loss):
    given = {"policy_loss": policy_loss, "micro_batch_tokens": tokens}
    alone = gradients(moved(make_config(LLMPPOConfig, **given)), played())
    config = make_config(LLMPPOConfig, **given).preferences(loss=DPO, coeff=0.3)
    episodes = played()
    found = gradients(moved(config), [*episodes, *paired(episodes)])
    of_critic = {n: torch.zeros_like(g) for n, g in alone.items()}
    assert_close(found, added(alone, {**of_critic, **of_pairs()}, 0.3))


def added(one, other, coeff):
    return {n: one[n] + coeff * other[n] for n in one}


@pytest.mark.parametrize("tokens", [None, 48])
@pytest.mark.parametrize(
    "loss, nll_weight", [(DPO, 0.0), ({"name": "ipo", "beta": 0.5}, 0.7), ("simpo", 0)]
)
def test_the_gradient_is_the_sum_of_both_losses(tokens, loss, nll_weight):
    given = {"loss": loss, "coeff": 0.3, "nll_weight": nll_weight}
    learner = moved(config_of(given, micro_batch_tokens=tokens))
    episodes = played()
    found = gradients(learner, [*episodes, *paired(episodes)])
    more = of_pairs(loss, nll_weight)
    assert max(float(g.abs().max()) for g in more.values()) > 1e-4
    assert_close(found, added(of_policy(), more, 0.3))


def test_terms_and_corrections_act_on_sampled_tokens_alone():
    more = {"entropy_coeff": 0.3, "loss_terms": ["entropy"], "tis": "token"}
    episodes = played()
    learner = moved(config_of(**more))
    found = gradients(learner, [*episodes, *paired(episodes)])
    assert_close(found, added(of_policy(**more), of_pairs(), 1.0))


def test_pairs_are_whole_in_every_step():
    learner = moved(config_of())
    episodes, seen = played(), []
    weigh = learner.weigh_units

    def watch(module_id, data):
        weigh(module_id, data)
        seen.append(learner.count_compared(data))

    learner.weigh_units = watch
    results = update(learner, [*episodes, *paired(episodes)], minibatch_size=2)
    assert seen == [1.0, 1.0, 1.0]
    learned = results[DEFAULT_MODULE_ID]
    assert {"preference_loss", "margin", "pair_token_frac"} <= {*learned}
    assert float(learned["pair_token_frac"].peek()) == pytest.approx(0.5)


@pytest.mark.parametrize("tokens", [None, 48])
def test_two_learners_have_the_gradient_of_one(tokens, monkeypatch):
    config = config_of(micro_batch_tokens=tokens)
    episodes = played()
    pairs = paired(episodes)
    whole = gradients(moved(config), [*episodes, *pairs])
    for shards in (
        ([*episodes[:2], pairs[0]], [*episodes[2:], *pairs[1:]]),
        (episodes, pairs),  # one without pairs, one without sampled episodes
    ):
        taken, both = {}, [moved(config) for _ in range(2)]

        def call(learner, shard, taken=taken):
            taken[id(learner)] = gradients(learner, shard)

        call_side_by_side(both, shards, call, monkeypatch)
        assert len(taken) == 2
        for found in taken.values():
            assert_close(found, whole, atol=5e-6)


def test_a_schedule_of_the_coefficient_begins_at_the_first_update():
    learner = moved(config_of({"coeff": [[0, 0.0], [10, 1.0]]}))
    episodes = played()
    assert_close(gradients(learner, [*episodes, *paired(episodes)]), of_policy())


def joined(preferences=None, masked=()):
    config = config_of(preferences)
    algo = GRPO.__new__(GRPO)
    algo.config, algo.metrics = config, MetricsLogger()
    returns = [0.0, 1.0, 0.5, 1.0, 2.0, 2.0]
    episodes = [fake_episode(i, reward=r, group=i // 4) for i, r in enumerate(returns)]
    for number in masked:
        episode_data(episodes[number]).stop_policy = StopPolicy.MASK
    units = MixesPairs.with_stored(algo, SampledEpisodes(episodes))
    assert units[: len(episodes)] == episodes
    assert {episode_data(e).source for e in episodes} == {SAMPLED}
    pairs = units[len(episodes) :]
    assert {episode_data(pair).source for pair in pairs} <= {PAIR}
    assert float(algo.metrics.peek("num_pairs")) == len(pairs)
    return [
        [sum(side.get_rewards()) for side in pair.agent_episodes.values()]
        for pair in pairs
    ]


def test_pairs_are_those_of_a_tasks_episodes():
    assert joined() == [[1.0, 0.0], [1.0, 0.5]]
    assert joined({"match": "best_worst"}) == [[1.0, 0.0]]
    assert joined({"margin": 0.5}) == [[1.0, 0.0]]
    assert joined({"match": "all", "max_pairs_per_task": 1}) == [[1.0, 0.0]]
    # A masked episode is trained by neither loss.
    assert joined(masked=[0]) == [[1.0, 0.5]]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.preferences(loss="kto"), "compares labels"),
        (lambda c: c.preferences(coeff=0.5), "coeff=0.5 would have no effect"),
        (lambda c: c.preferences(loss={"name": "dpo", "beta": -1}), "beta is -1"),
        (
            lambda c: c.preferences(loss="dpo").rollouts(group_size=1),
            "preferences.loss needs two episodes|group of one",
        ),
        (
            lambda c: c.preferences(loss="dpo").environment("secret_sum-v0"),
            "has the agents alice_0, bob_0",
        ),
    ],
)
def test_what_is_refused(change, message):
    for config in (GRPOConfig(), LLMPPOConfig().rollouts(group_size=8)):
        with pytest.raises(ConfigError, match=message):
            change(config.environment("guess_number-v0")).validate()


def test_marft_refuses_pairs():
    config = MARFTConfig().environment("guess_number-v0").preferences(loss="dpo")
    with pytest.raises(ConfigError, match="MARFT does not support this setting"):
        config.rollouts(group_size=2).validate()


@pytest.mark.ray
def test_a_run_with_pairs_beside_the_policy_loss(ray_session, tmp_path):
    config = (
        GRPOConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .generation(max_new_tokens=8)
        .rollouts(episodes_per_iteration=16, group_size=4)
        .training(lr=1e-3, minibatch_size=8)
        .preferences(loss=DPO, coeff=0.5)
        .sft(demonstrations=60, mistake_rate=0.5)
    )
    algo = config.build_algo()
    results = [algo.train() for _ in range(2)]
    assert all(0 < r["num_pairs"] <= 8 for r in results)
    learned = results[-1]["learners"][DEFAULT_MODULE_ID]
    assert {"policy_loss", "margin", "pair_accuracy"} <= {*learned}
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()["learners"][DEFAULT_MODULE_ID]["preference_loss"]
    again = type(algo).from_checkpoint(path)
    assert again.train()["learners"][DEFAULT_MODULE_ID]["preference_loss"] == expected
    again.stop()
    algo.stop()
