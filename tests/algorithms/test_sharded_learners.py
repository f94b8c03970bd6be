"""Sharded Learners compute what one Learner computes that holds everything."""

from __future__ import annotations

import numpy as np
import pytest
import sharded
import torch
from learner_helpers import TINY, fake_episode, make_config
from process_group import ProcessGroup
from team_helpers import Pair, Run, Uneven, set_group_advantages, team_config, turns_of
from test_pref import pairs as preference_pairs
from test_pref_labels import labelled
from test_scoring_runs import Run as ScoringRun
from test_scoring_runs import config_of as scoring_config
from test_sft import sft

from rllib_llm import GRPOConfig, LLMPPOConfig, PrefConfig, SelfPlayConfig
from rllib_llm.algorithms.driver.memory_plan import plan_memory
from rllib_llm.algorithms.marft.marft import MARFTConfig
from rllib_llm.algorithms.selfplay.assign_opponents import TakeTurns
from rllib_llm.data.episode_data import REPLAY, episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.errors import ConfigError
from rllib_llm.offline.prepare_model import prepare_language_model

TRAINING = {"lr": 1e-3, "micro_batch_tokens": 24, "entropy_coeff": 0.01}


@pytest.fixture(scope="module")
def pair():
    group = ProcessGroup(2)
    yield group
    group.close()


@pytest.fixture(scope="module")
def four():
    group = ProcessGroup(4)
    yield group
    group.close()


def episodes(count=7):
    found = [fake_episode(seed, turns=1 + seed % 5) for seed in range(count)]
    for index, episode in enumerate(found):
        episode_data(episode).advantage = float(np.cos(index))
    return found


def assert_equal(found, expected, atol=1e-6):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name],
            tensor,
            atol=atol,
            rtol=0,
            msg=lambda m, name=name: f"{name}: {m}",
        )


LORA = {"rank": 4, "alpha": 8}
OWN = {"value_model": "own"}
CASES = {
    "grpo": (GRPOConfig, {}, {}),
    "ppo": (LLMPPOConfig, {}, {}),
    "own critic": (LLMPPOConfig, {}, OWN),
    "reference": (GRPOConfig, {"ref_kl_coeff": 0.5}, {}),
    "reference in rewards": (
        LLMPPOConfig,
        {"ref_kl_coeff": 0.5, "ref_kl_in": "reward", "ref_kl_estimator": "k1"},
        {},
    ),
    "adapters": (GRPOConfig, {"ref_kl_coeff": 0.5}, {"lora": LORA}),
    "adapters, critic": (LLMPPOConfig, {}, {"lora": LORA}),
    "checkpointing": (
        GRPOConfig,
        {"gradient_checkpointing": True, "head_chunk_tokens": 8},
        {},
    ),
    "packed": (LLMPPOConfig, {"ref_kl_coeff": 0.5, "packing": True}, OWN),
    "clipped norm": (GRPOConfig, {"grad_clip": 0.05}, {}),
    "clipped norms": (LLMPPOConfig, {"grad_clip": 1e-3, "grad_clip_by": "norm"}, {}),
    "clipped values": (LLMPPOConfig, {"grad_clip": 1e-3, "grad_clip_by": "value"}, {}),
    "whole sequences": (
        GRPOConfig,
        {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
        {},
    ),
    "ranks of all tokens": (
        GRPOConfig,
        {"loss_terms": [{"name": "kl_cov", "share": 0.2, "weight": 5.0}]},
        {},
    ),
}


def config_of(config_class, training, model):
    training, model = dict(training), {"tiny": TINY, **model}
    if "gradient_checkpointing" in training:
        model["gradient_checkpointing"] = training.pop("gradient_checkpointing")
    config = config_class().environment("guess_number-v0").language_model(**model)
    config.training(**{**TRAINING, **training})
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config


IN_FAST_LANE = ("grpo", "own critic", "packed", "adapters, critic", "clipped norm")


@pytest.mark.parametrize(
    "case",
    [
        case if case in IN_FAST_LANE else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_gradients_are_those_of_one_learner(pair, case):
    config = config_of(*CASES[case])
    grads, weights, (size, _) = sharded.step(config, episodes(), steps=2)
    assert max(float(g.abs().max()) for g in grads.values()) > 5e-4
    found = pair(sharded.step, sharded.sharded_config(config), episodes(), steps=2)
    for of_rank, after, (held, _) in found:
        assert_equal(of_rank, grads)
        assert_equal(after, weights, 1e-5)
        assert held < 0.6 * size or config.lm_lora


@pytest.mark.parametrize("case", ["own critic", "adapters"])
def test_the_memory_plan_counts_shards(pair, case):
    config = sharded.sharded_config(config_of(*CASES[case]))
    plan = plan_memory(config)[2]
    for *_, (weights, moments) in pair(sharded.step, config, episodes()):
        assert plan.weights == pytest.approx(4 * weights, rel=0.01)
        assert plan.optimizer == pytest.approx(8 * moments, rel=0.01)
    whole = plan_memory(config_of(*CASES[case]))[2]
    assert plan.weights < 0.6 * whole.weights


@pytest.mark.parametrize("kwargs", [{}, {"reshard_after_forward": False}], ids=str)
def test_a_restored_state_replaces_gathered_layers(pair, kwargs):
    config = config_of(*CASES["reference"])
    grads, weights, _ = sharded.restored(config, episodes())
    found = pair(sharded.restored, sharded.sharded_config(config, **kwargs), episodes())
    for of_rank, after, _ in found:
        assert_equal(of_rank, grads)
        assert_equal(after, weights, 1e-5)


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_and_minibatches_without_rows(pair, config_class, count):
    config = config_of(config_class, {"ref_kl_coeff": 0.1}, {})
    played = episodes(count)
    episode_data(played[0]).stop_policy = StopPolicy.MASK
    kwargs = {"minibatch_size": 1, "num_epochs": 2}
    grads, *_ = sharded.step(config, played, **kwargs)
    found = pair(sharded.step, sharded.sharded_config(config), played, **kwargs)
    for of_rank, after, _ in found:
        assert of_rank.keys() == grads.keys()
        assert_equal(after, found[0][1], 0)


def test_without_a_trained_token_no_step_is_taken(pair):
    config, played = config_of(LLMPPOConfig, {}, {}), episodes()
    for episode in played:
        episode_data(episode).stop_policy = StopPolicy.MASK
    before = sharded.parameters(sharded.make(config))
    for taken, after, _ in pair(sharded.step, sharded.sharded_config(config), played):
        assert not taken
        assert_equal(after, before, 0)


TEAMS = [
    (GRPOConfig, {}, {}),
    (LLMPPOConfig, {}, {}),
    (MARFTConfig, {"level": "action"}, {}),
    (MARFTConfig, {"level": "action", "whiten_by": "batch", "critic": "central"}, {}),
    (MARFTConfig, {"level": "token", "critic": "own"}, {}),
    (MARFTConfig, {"update_schedule": "alternate", "alternate_every": 1}, {}),
    (MARFTConfig, {"update_schedule": "sequential"}, {}),
    (MARFTConfig, {"update_schedule": "sequential"}, {"lora": LORA}),
]


def team(config_class, training, model):
    groups = 2 if config_class is GRPOConfig else 1
    config = team_config(
        Uneven,
        config_class,
        training={**TRAINING, "lr": 1e-2, "micro_batch_tokens": 400, **training},
        rollouts={"group_size": groups},
        language_model=model,
    )
    run = Run(config)
    played = run.sample(12)
    if config_class is GRPOConfig:
        set_group_advantages(config, played)
    ben = [e for e in played if any(who == "ben_0" for who, _ in turns_of(e))]
    return config, ben[:1] + [e for e in played if e not in ben][:6]


@pytest.mark.slow
@pytest.mark.parametrize("case", TEAMS)
def test_policies_of_a_team(pair, case):
    compare(pair, *team(*case))


@pytest.mark.slow
@pytest.mark.parametrize("case", TEAMS[:4])
def test_policies_of_a_team_with_four_learners(four, case):
    compare(four, *team(*case))


def self_play():
    pytest.importorskip("openskill")
    config = team_config(
        Pair, SelfPlayConfig, policies=None, training={**TRAINING, "lr": 1e-2}
    )
    run = Run(config)
    tasks, opponent = config.build_task_source(), config.opponent_slots[0]
    tasks.agent = TakeTurns(
        "default_policy", opponent, config.assign_league_opponents(), {}
    )
    played = run.runner.sample(tasks=tasks.next_groups(6))
    set_group_advantages(config, played)
    return config, played


def imitation():
    config = sft(observation_weight=0.3, micro_batch_tokens=24, minibatch_size=None)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config, episodes()


def preferences(loss, units=preference_pairs, **training):
    config = make_config(
        PrefConfig, preference_loss=loss, micro_batch_tokens=48, **training
    )
    return config, units()


def replayed():
    config = make_config(GRPOConfig, **TRAINING)
    config.replay(episodes_per_iteration=3, coeff=0.5, loss="nll")
    played = episodes()
    for episode in played[:3]:
        episode_data(episode).source = REPLAY
    return config, played


def actions():
    config = scoring_config(GRPOConfig).training(**TRAINING)
    played = ScoringRun(config).sample()
    for index, episode in enumerate(played):
        episode_data(episode).advantage = float(np.cos(index))
    return config, played


OTHERS = {
    "self-play": self_play,
    "sft": imitation,
    "dpo": lambda: preferences("dpo"),
    "no reference": lambda: preferences("simpo"),
    "current reference": lambda: preferences("dpo", reference="current"),
    "kto": lambda: preferences("kto", lambda: labelled(mismatched=True)),
    "replay": replayed,
    "actions": actions,
}


def compare(group, config, played):
    grads, weights, _ = sharded.step(config, played, steps=2)
    assert max(float(g.abs().max()) for g in grads.values()) > 1e-4
    found = group(sharded.step, sharded.sharded_config(config), played, steps=2)
    for of_rank, after, _ in found:
        assert_equal(of_rank, grads)
        assert_equal(after, weights, 1e-4 if config.lr > TRAINING["lr"] else 1e-5)


@pytest.mark.parametrize("case", OTHERS)
def test_other_algorithms(pair, case):
    compare(pair, *OTHERS[case]())


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_other_algorithms_with_four_learners(four, case):
    compare(four, *OTHERS[case]())


@pytest.mark.parametrize(
    "kwargs", [{"reshard_after_forward": False}, {"offload": True}], ids=str
)
def test_places_of_parameters_do_not_change_the_step(pair, kwargs):
    config = config_of(*CASES["own critic"])
    grads, weights, _ = sharded.step(config, episodes(), steps=2)
    found = pair(
        sharded.step, sharded.sharded_config(config, **kwargs), episodes(), steps=2
    )
    for of_rank, after, _ in found:
        assert_equal(of_rank, grads)
        assert_equal(after, weights, 1e-5)


def test_a_lower_precision_rounds_passes_alone(pair):
    config = config_of(*CASES["ppo"])
    grads, *_ = sharded.step(config, episodes())
    lower = sharded.sharded_config(config, param_dtype="bfloat16")
    for found, after, _ in pair(sharded.step, lower, episodes()):
        assert {t.dtype for t in (*found.values(), *after.values())} == {torch.float32}
        rounded, exact = flat(found, grads), flat(grads, grads)
        # Shards alone change gradients by 1e-7, bfloat16 by its 8 binary digits.
        assert (rounded - exact).norm() > 1e-3 * exact.norm()
        assert torch.cosine_similarity(rounded, exact, dim=0) > 0.99


def flat(tensors, names):
    return torch.cat([tensors[name].ravel() for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["grpo", "own critic", "adapters"])
def test_four_learners(four, case):
    config = config_of(*CASES[case])
    grads, weights, (size, _) = sharded.step(config, episodes(), steps=2)
    found = four(sharded.step, sharded.sharded_config(config), episodes(), steps=2)
    for of_rank, after, (held, _) in found:
        assert_equal(of_rank, grads)
        assert_equal(after, weights, 1e-5)
        assert held < 0.35 * size or config.lm_lora


@pytest.mark.parametrize(
    ("learners", "more", "message"),
    [
        ({"num_learners": 0}, {}, "num_learners=0. Set num_learners to 2 or more"),
        ({"num_learners": 1}, {}, "num_learners=1. Set num_learners to 2 or more"),
        ({"sharding": None, "sharding_kwargs": {"offload": True}}, {}, "no effect"),
        ({"sharding": "fsdp"}, {}, "sharding"),
        ({"sharding_kwargs": {"ofload": True}}, {}, "offload"),
        ({"sharding_kwargs": {"param_dtype": "float16"}}, {}, "param_dtype"),
        ({}, {"compile": "eager"}, "compile='eager'"),
        ({"collective_timeout_s": 0}, {}, "collective_timeout_s"),
        (
            {"optimizer_offload": True, "num_gpus_per_learner": 1},
            {},
            "{offload: true} instead",
        ),
    ],
)
def test_what_cannot_be_sharded_is_refused(learners, more, message):
    with pytest.raises(ConfigError, match=message):
        config = GRPOConfig().environment("guess_number-v0")
        config.language_model(tiny=TINY, **more)
        config.learners(**{"num_learners": 2, "sharding": "fsdp2", **learners})
        config.validate()
