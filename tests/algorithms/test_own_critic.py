"""A critic with its own trunk: it learns, and the policy's gradient is unchanged."""

import pytest
import torch
from learner_helpers import (
    TINY,
    fake_episode,
    gradients,
    make_config,
    make_learner,
    policy,
    update,
    weights,
)
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.errors import ConfigError

TRUNK = "value_head.trunk."


def episodes():
    return [fake_episode(i, turns=1 + i % 4) for i in range(6)]


def own_critic(**training):
    config = make_config(**training)
    return make_learner(config.language_model(value_model="own"))


def wake(learner):
    """Make the critic's last layer, which starts at zero, pass gradients on."""
    with torch.no_grad():
        policy(learner).value_head.out.weight.fill_(0.1)
    return learner


def test_it_starts_as_a_copy_with_tensors_of_its_own():
    module = policy(own_critic())
    for name, parameter in module.lm.base_model.named_parameters():
        copied = module.value_head.trunk.get_parameter(name)
        assert torch.equal(parameter, copied), name
        assert parameter.data_ptr() != copied.data_ptr(), name


def test_the_policys_gradient_is_bitwise_the_same_whatever_the_critic_does():
    found = [
        gradients(
            wake(own_critic(vf_loss_coeff=c, whiten_advantages=False)), episodes()
        )
        for c in (0.0, 50.0)
    ]
    critic = [n for n in found[0] if n.startswith(TRUNK)]
    assert critic
    assert any(found[1][n].abs().max() > 0 for n in critic)
    assert all(found[0][n].abs().max() == 0 for n in critic)
    for name in found[0]:
        if name.startswith("lm."):
            assert torch.equal(found[0][name], found[1][name]), name
            assert found[0][name].abs().max() > 0, name


def test_the_critic_has_its_own_optimiser_and_learning_rate():
    learner = wake(own_critic(lr=1e-3, critic_lr=1e-2, vf_loss_coeff=100.0))
    before = weights(learner)
    update(learner, episodes())
    moved = {n: (p - before[n]).abs().max() for n, p in weights(learner).items()}
    for name, largest in moved.items():
        # Adam's first step moves a parameter by its learning rate.
        lr = 1e-2 if name.startswith("value_head.") else 1e-3
        assert float(largest) == pytest.approx(lr, rel=0.05), name


def test_a_critic_of_its_own_fits_what_a_detached_head_cannot():
    explained = {}
    for value_model in ("shared", "own"):
        config = make_config(lr=1e-9, critic_lr=3e-3, whiten_advantages=False)
        learner = make_learner(config.language_model(value_model=value_model))
        # The reward-to-go depends on the turn only; token ids are random.
        made = [fake_episode(i, turns=4, reward=float(i % 2)) for i in range(8)]
        for _ in range(40):
            result = update(learner, made)[DEFAULT_MODULE_ID]
        explained[value_model] = result["vf_explained_var"].peek()
    assert explained["own"] > 0.9
    assert explained["own"] > explained["shared"] + 0.1


def test_state_round_trip_is_exact():
    config = make_config(critic_lr=1e-3).language_model(value_model="own")
    straight, saved = wake(make_learner(config)), wake(make_learner(config))
    for learner in (straight, saved):
        update(learner, episodes())
    resumed = make_learner(config)
    resumed.set_state(saved.get_state())
    for learner in (straight, resumed):
        update(learner, episodes())
    theirs = weights(resumed)
    for name, value in weights(straight).items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize(
    ("config_class", "settings", "message"),
    [
        (LLMPPOConfig, {"lora": {"rank": 4}}, "value_model='shared'"),
        (LLMPPOConfig, {"value_head_detach": False}, "would have no effect"),
        (GRPOConfig, {}, "GRPO has no critic"),
    ],
)
def test_what_it_cannot_be_combined_with(config_class, settings, message):
    config = config_class().environment("guess_number-v0")
    config.language_model(tiny=TINY, value_model="own", **settings)
    with pytest.raises(ConfigError, match=message):
        config.validate()
