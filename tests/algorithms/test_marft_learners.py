"""Adapters, frozen policies and several Learners: which change, and equality."""

import pytest
import torch
from ray.rllib.core.columns import Columns
from side_by_side import update_side_by_side
from team_helpers import (
    LORA,
    Pair,
    Run,
    Uneven,
    assert_bit_equal,
    assert_near,
    gradients,
    make_team_learner,
    set_group_advantages,
    team_config,
    tiny_model,
    turns_of,
    wake_critic,
    weights_of,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.marft.marft import MARFTConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.task_groups import TaskSource


def moved(before, after):
    return {n for n in before if not torch.equal(before[n], after[n])}


# Adapters ----------------------------------------------------------------------------


def with_adapters(env=Pair, **sections):
    language_model = {"model": tiny_model(), "lora": LORA}
    return team_config(env, language_model=language_model, **sections)


def warm_adapters(learner):
    """Give B matrices, which start at zero, values: A matrices then learn as well."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module_id in "ab":
            for name, p in learner.module[module_id].unwrapped().named_parameters():
                if "lora_B" in name:
                    p.copy_(0.1 * torch.randn(p.shape, generator=generator))


@pytest.mark.parametrize("level", ["action", "token"])
def test_each_adapters_gradient_is_its_own(level):
    run = Run(with_adapters(training={"level": level, "whiten_advantages": False}))
    wake_critic(run.learner)
    warm_adapters(run.learner)
    episodes = run.sample(3)
    whole = gradients(run.learner, episodes)
    for module_id in "ab":
        assert whole[module_id] and all("lora_" in n for n in whole[module_id])
        for name, gradient in whole[module_id].items():
            assert gradient.abs().max() > 1e-6, name
    # Without advantages for Ben, Ann's gradient is the same to the bit.
    original = run.learner._minibatches

    def without_ben(data, *args):
        data["b"][Columns.ADVANTAGES] = torch.zeros_like(data["b"][Columns.ADVANTAGES])
        return original(data, *args)

    run.learner._minibatches = without_ben
    partly = gradients(run.learner, episodes)
    assert_bit_equal(partly["a"], whole["a"])
    assert all(not g.abs().max() for g in partly["b"].values())


def test_an_adapter_moves_alone_and_the_base_never():
    run = Run(with_adapters(train=["a"], training={"critic": "own"}))
    before = {m: run.weights(m) for m in "ab"}
    run.update(run.sample(2))
    after = {m: run.weights(m) for m in "ab"}
    assert not moved(before["b"], after["b"])
    assert moved(before["a"], after["a"])
    assert all("lora_" in n or "value" in n for n in moved(before["a"], after["a"]))


def only_a(module_id, batch=None):
    return module_id == "a"


@pytest.mark.parametrize("train", [["a"], only_a])
@pytest.mark.parametrize("config_class", [LLMPPOConfig, GRPOConfig, MARFTConfig])
def test_frozen_policies_stay_to_the_bit_and_sample_on(config_class, train):
    sections = {"train": train, "rollouts": {"group_size": 2}}
    run = Run(team_config(Pair, config_class, **sections))
    before = {m: run.weights(m) for m in "ab"}
    for _ in range(2):
        run.update(run.sample(2))
    assert_bit_equal(before["b"], run.weights("b"))
    assert moved(before["a"], run.weights("a"))
    agent_turns = [t for e in run.sample(1) for t in turns_of(e)]
    assert {who for who, _ in agent_turns} == {"ann_0", "ben_0"}


# Several Learners --------------------------------------------------------------------


def unequal(config_class, training, **sections):
    return team_config(
        Uneven,
        config_class,
        training={"lr": 1e-2, **training},
        rollouts={"group_size": 2 if config_class is GRPOConfig else 1},
        **sections,
    )


PARALLEL = [
    (GRPOConfig, {}),
    (LLMPPOConfig, {}),
    (MARFTConfig, {"level": "action"}),
    (MARFTConfig, {"level": "token"}),
    (MARFTConfig, {"level": "action", "whiten_by": "batch", "critic": "central"}),
    (MARFTConfig, {"level": "token", "critic": "own"}),
    (MARFTConfig, {"update_schedule": "alternate", "alternate_every": 1}),
    (MARFTConfig, {"update_schedule": "sequential"}),
]


@pytest.mark.parametrize(("config_class", "training"), PARALLEL)
def test_two_learners_take_the_steps_of_one(config_class, training, monkeypatch):
    config = unequal(config_class, training)
    one = Run(config)
    pair = [make_team_learner(config) for _ in range(2)]
    everyone = [one.learner, *pair]
    if config.critic_view:
        for learner in everyone:
            wake_critic(learner)
    tasks = TaskSource(5, config.group_size).next_groups(24)
    played = one.runner.sample(tasks=tasks)
    ben = [e for e in played if any(who == "ben_0" for who, _ in turns_of(e))]
    rest = [e for e in played if e not in ben]
    # Ben has something to say in one episode, which only one of the Learners gets.
    groups = {episode_data(e).task.group_id for e in ben[: config.group_size]}
    episodes = [e for e in ben if episode_data(e).task.group_id in groups]
    episodes += rest[: 6 * config.group_size]
    if config_class is GRPOConfig:
        set_group_advantages(config, episodes)
    kwargs = {"num_epochs": 1, "minibatch_size": None}
    if training.get("level") == "token":
        kwargs["num_epochs"] = 2
    for _ in range(2):
        one.learner.update(
            training_data=training_data(episodes), timesteps={}, **kwargs
        )
        shards = update_side_by_side(pair, episodes, monkeypatch, **kwargs)
    actors = [{who for e in shard for who, _ in turns_of(e)} for shard in shards]
    if config_class is not GRPOConfig:
        assert sorted(map(len, actors)) == [1, 2]  # unequal indeed
    for module_id in one.learner.module.keys():
        whole = weights_of(one.learner, module_id)
        for learner in pair:
            assert_near(whole, weights_of(learner, module_id), atol=3e-4)
        assert_bit_equal(*(weights_of(learner, module_id) for learner in pair))


def training_data(episodes):
    from rllib_llm.algorithms.learner.training_data import LLMTrainingData

    return LLMTrainingData(episodes=episodes)
