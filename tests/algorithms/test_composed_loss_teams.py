"""Components with several policies, several Learners, and MARFT."""

from __future__ import annotations

import pytest
from side_by_side import update_side_by_side
from team_helpers import (
    Pair,
    Run,
    Uneven,
    assert_bit_equal,
    assert_near,
    gradients,
    make_team_learner,
    set_group_advantages,
    team_config,
    update,
    wake_critic,
    weights_of,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.errors import ConfigError

CLIP = {"name": "ppo_clip", "low": 0.2, "high": 0.2}


@pytest.mark.parametrize("critic", ["own", "shared"])
def test_marft_by_token_with_the_component_is_marft(critic):
    found = []
    for chosen in ({}, {"policy_loss": CLIP}):
        training = {"level": "token", "critic": critic, "entropy_coeff": 0.01, **chosen}
        run = Run(team_config(Pair, training=training))
        for module_id in ("critic",) if critic == "shared" else "ab":
            wake_critic(run.learner, module_id)
        found.append(gradients(run.learner, run.sample(3)))
    stock, ours = found
    assert stock.keys() == ours.keys()
    for module_id in stock:
        assert_near(stock[module_id], ours[module_id], atol=1e-6)
        assert any(g.abs().max() > 1e-4 for g in ours[module_id].values())


def test_marft_by_token_trains_with_terms_and_transforms():
    training = {
        "level": "token",
        "policy_loss": "gspo",
        "loss_terms": [{"name": "entropy_target", "target": 9.0, "step": 0.01}],
        "token_advantage_transforms": ["entropy_shaping"],
    }
    run = Run(team_config(Pair, training=training))
    update(run.learner, run.sample(3))
    for module_id in "ab":
        (term,) = run.learner._composed_loss[module_id].terms
        assert term.call.coeff == 0.01


@pytest.mark.parametrize(
    "training, message",
    [
        ({"policy_loss": "gspo"}, "level='action' has one ratio per message"),
        ({"loss_terms": ["entropy"]}, "level='action' has one ratio per message"),
        ({"gae_level": "turn"}, "gae_level='turn' would have no effect"),
        ({"level": "token", "value_loss": "bce"}, "value_loss='bce' would have no"),
        ({"level": "token", "lambda_critic": 1.0}, "lambda_critic=1.0 would have no"),
        (
            {
                "level": "token",
                "policy_loss": "pg",
                "loss_agg_mode": "seq-mean-token-sum",
            },
            "MARFT averages over messages or tokens",
        ),
    ],
)
def test_what_marft_cannot_use_is_refused(training, message):
    with pytest.raises(ConfigError, match=message):
        team_config(Pair, training=training).validate()


def test_policies_have_their_own_components():
    policies = {
        "a": {"training": {"token_advantage_transforms": [{"name": "top_entropy"}]}},
        "b": {"training": {"policy_loss": "sapo"}},
    }
    config = team_config(
        Pair, GRPOConfig, policies=policies, rollouts={"group_size": 2}
    )
    run = Run(config)
    components = run.learner._composed_loss
    assert components["a"].transforms and components["a"].loss is None
    assert (
        components["b"].loss.component.name == "sapo" and not components["b"].transforms
    )
    episodes = run.sample(2)
    set_group_advantages(config, episodes)
    found = gradients(run.learner, episodes)
    assert all(any(g.any() for g in found[m].values()) for m in "ab")


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_two_learners_take_the_steps_of_one(config_class, monkeypatch):
    training = {
        "policy_loss": "cispo",
        "loss_terms": [
            {"name": "nll_success", "weight": 0.1},
            {"name": "entropy_target", "target": 9.0, "step": 0.05, "largest": 1.0},
        ],
    }
    config = team_config(
        Uneven, config_class, training=training, rollouts={"group_size": 2}
    )
    one = Run(config)
    pair = [make_team_learner(config) for _ in range(2)]
    episodes = one.sample(3)
    if config_class is GRPOConfig:
        set_group_advantages(config, episodes)
    for number, episode in enumerate(episodes):
        for part in agent_episodes(episode):
            episode_data(part).success = number % 3 == 0
    for _ in range(2):
        update(one.learner, episodes)
        update_side_by_side(pair, episodes, monkeypatch)
    for module_id in one.config.trained_module_ids:
        coeffs = {
            float(learner._composed_loss[module_id].terms[1].call.coeff)
            for learner in (one.learner, *pair)
        }
        assert coeffs == {0.1}
        whole = weights_of(one.learner, module_id)
        for learner in pair:
            assert_near(whole, weights_of(learner, module_id), atol=3e-4)
        assert_bit_equal(*(weights_of(learner, module_id) for learner in pair))
