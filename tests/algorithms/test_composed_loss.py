"""Components in Learners: equal to the built-in losses, exact under any split."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    gradients,
    make_batch,
    make_config,
    make_learner,
    policy,
    update,
)
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.turn_gae import length_adaptive_lambda
from rllib_llm.components.registry import COMPONENTS
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError, RLlibLLMError

CLIP = {"name": "ppo_clip", "low": 0.2, "high": 0.2}


def episodes(count=6, **kwargs):
    """Some of one row, some of two; half of them solved."""
    found = []
    for seed in range(count):
        episode = fake_episode(seed, breaks=seed % 2 == 0, **kwargs)
        data = episode_data(episode)
        data.advantage, data.success = float(np.cos(3 * seed)), seed % 2 == 0
        found.append(episode)
    return found


def near(played):
    """Let a policy near the learner's have sampled the episodes."""
    learner = make_learner(make_config(GRPOConfig))
    batch = make_batch(learner, played)
    old, rng = batch[Columns.ACTION_LOGP].numpy(), np.random.default_rng(0)
    for index, episode in enumerate(played):
        rows = batch[columns.EPISODE_INDEX].numpy() == index
        for number, turn in enumerate(episode.get_extra_model_outputs(columns.TURN)):
            here = batch[columns.TURN_IDS].numpy()[rows] == number
            noise = 0.4 * rng.normal(size=here.sum())
            turn.action_logps[:] = old[rows][here] + noise
    return played


def off_policy_learner(config_class, **training):
    return make_learner(make_config(config_class, old_logps="engine", **training))


def off_policy_gradients(config_class, **training):
    """The gradient at a policy near the one which sampled."""
    learner = off_policy_learner(config_class, **training)
    return gradients(learner, near(episodes()))


# Equal to what they replace -----------------------------------------------------------


def test_grpo_with_the_component_is_grpo():
    given = off_policy_gradients(
        GRPOConfig, policy_loss={**CLIP, "high": 0.28, "dual": 3.0}
    )
    expected = off_policy_gradients(
        GRPOConfig, clip_param=0.2, clip_param_high=0.28, dual_clip=3.0
    )
    assert_close(given, expected)


def test_ppo_with_the_component_is_rllibs_ppo():
    shared = {
        "entropy_coeff": 0.01,
        "ref_kl_coeff": 0.05,
        "vf_clip_param": 0.5,
        "micro_batch_tokens": 64,
    }
    found = []
    for chosen in ({}, {"policy_loss": CLIP}):
        learner = off_policy_learner(LLMPPOConfig, **shared, **chosen)
        assert learner.config.uses_rllib_loss == (not chosen)
        with torch.no_grad():  # a fresh critic's last layer is zero
            for parameter in policy(learner).value_head.parameters():
                parameter += 0.1
        found.append(gradients(learner, near(episodes())))
    stock, ours = found
    largest = max(float((stock[n] - ours[n]).abs().max()) for n in stock)
    size = max(float(g.abs().max()) for g in stock.values())
    assert stock.keys() == ours.keys() and largest < 1e-6 < size


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
@pytest.mark.parametrize("name", COMPONENTS["policy_loss"].names())
def test_every_loss_trains(config_class, name):
    config = make_config(config_class, policy_loss=name)
    learner = make_learner(config)
    found = gradients(learner, episodes())
    assert all(torch.isfinite(g).all() for g in found.values())
    assert any(g.any() for n, g in found.items() if not n.startswith("value_head"))


# Cuts ---------------------------------------------------------------------------------

EVERYTHING = {
    "loss_terms": [
        {"name": "entropy", "top": 0.3, "weight": 0.1},
        {"name": "kl_cov", "share": 0.2},
        {"name": "nll_success", "weight": 0.1},
        "distill",
    ],
    "token_advantage_transforms": [
        "entropy_shaping",
        {"name": "top_entropy", "share": 0.6},
    ],
}


@pytest.mark.parametrize(
    "chosen",
    [{"policy_loss": n} for n in COMPONENTS["policy_loss"].names()] + [EVERYTHING],
    ids=str,
)
def test_micro_batches_change_no_gradient(chosen):
    whole = off_policy_gradients(GRPOConfig, micro_batch_tokens=None, **chosen)
    for tokens in (1, 70):
        cut = off_policy_gradients(GRPOConfig, micro_batch_tokens=tokens, **chosen)
        assert_close(cut, whole)


def test_rows_of_a_sequence_share_its_ratio():
    """With its rows on their own, the gradient would be another one."""
    wide = {"name": "gspo", "low": 0.9, "high": 9.0}
    together = off_policy_gradients(GRPOConfig, policy_loss=wide)
    apart = off_policy_gradients(GRPOConfig, policy_loss={**wide, "level": "turn"})
    assert any(not torch.allclose(together[n], apart[n]) for n in together)


# The whole batch before the update ----------------------------------------------------


@pytest.mark.parametrize("old_logps", ["learner", "engine"])
def test_transforms_see_the_policy_before_the_update(old_logps):
    config = make_config(
        GRPOConfig,
        old_logps=old_logps,
        token_advantage_transforms=[{"name": "top_entropy", "share": 0.25}],
    )
    learner = make_learner(config)
    seen = {}
    log_batch = learner._log_batch

    def keep(data):
        seen.update(data[DEFAULT_MODULE_ID])
        log_batch(data)

    learner._log_batch = keep
    update(learner, episodes())
    mask, entropy = seen[Columns.LOSS_MASK], seen[columns.TOKEN_ENTROPY]
    kept = seen[Columns.ADVANTAGES] != 0
    assert int(kept.sum()) == math.ceil(0.25 * int(mask.sum()))
    assert entropy[kept].min() >= entropy[mask & ~kept].max() > 0


def test_without_components_no_inputs_are_computed():
    config = make_config(GRPOConfig)
    assert config.old_logps_may_wait and not config.uses_reference
    batch = make_batch(make_learner(config), episodes())
    assert columns.TOKEN_ENTROPY not in batch and columns.REF_LOGP not in batch
    asking = make_config(GRPOConfig, loss_terms=["distill"])
    assert asking.uses_reference
    assert columns.REF_LOGP in make_batch(make_learner(asking), episodes())


def test_success_comes_from_the_episodes():
    learner = make_learner(make_config(GRPOConfig, loss_terms=["nll_success"]))
    batch = make_batch(learner, episodes())
    owners = batch[columns.EPISODE_INDEX]
    assert (batch[columns.SUCCESS] == (owners % 2 == 0)).all()
    played = episodes()
    for episode in played:
        episode_data(episode).success = None
    with pytest.raises(RLlibLLMError, match="need the success of episodes"):
        update(learner, played)


def test_terms_are_logged_and_remembered():
    spec = {"name": "entropy_target", "target": 100.0, "step": 0.01}
    config = make_config(GRPOConfig, loss_terms=[spec])
    learner = make_learner(config)
    for expected in (0.01, 0.02):
        found = update(learner, episodes())[DEFAULT_MODULE_ID]
        assert found["loss_term_coeff_entropy_target"].peek() == expected
    assert found["loss_term_entropy_target"].peek() < 0
    again = make_learner(config)
    again.set_state(learner.get_state())
    found = update(again, episodes())[DEFAULT_MODULE_ID]
    assert found["loss_term_coeff_entropy_target"].peek() == pytest.approx(0.03)


def test_dual_clip_acts_on_negative_advantages_only():
    """The fraction that a bound acted on tells them apart."""
    spec = {"name": "ppo_clip", "low": 1.0, "high": 1e6, "dual": 1.01}
    for sign in (1.0, -1.0):
        learner = off_policy_learner(GRPOConfig, policy_loss=spec)
        played = near(episodes())
        for episode in played:
            episode_data(episode).advantage = sign
        found = update(learner, played)[DEFAULT_MODULE_ID]["clip_frac"].peek()
        assert (found > 0) == (sign < 0)


def test_clip_frac_is_the_same_however_the_clip_is_asked_for():
    chosen = (
        {"clip_param": 0.3, "clip_param_high": 5.0, "dual_clip": 1.1},
        {"policy_loss": {"name": "ppo_clip", "low": 0.3, "high": 5.0, "dual": 1.1}},
    )
    found, counted = [], []
    for training in chosen:
        learner = off_policy_learner(GRPOConfig, **training)
        played = near(episodes())
        batch = make_batch(learner, played)
        module = policy(learner)
        with torch.no_grad():
            logp = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS][..., 0]
        ratio = (logp - batch[Columns.ACTION_LOGP]).exp()
        advantages, mask = batch[Columns.ADVANTAGES], batch[Columns.LOSS_MASK]
        clipped = torch.where(
            advantages < 0, (ratio < 0.7) | (ratio > 1.1), ratio > 6.0
        )
        counted.append(float(clipped[mask].double().mean()))
        result = update(learner, played)[DEFAULT_MODULE_ID]
        found.append(result["clip_frac"].peek())
    assert found == pytest.approx(counted, rel=1e-5)
    assert found[0] == found[1] > 0.1


# Critic -------------------------------------------------------------------------------


def gae_of(**training):
    learner = make_learner(make_config(LLMPPOConfig, **training))
    with torch.no_grad():  # a fresh critic says 0 everywhere
        for parameter in learner.module[DEFAULT_MODULE_ID].value_head.parameters():
            parameter += 0.3
    return make_batch(learner, episodes())


def test_lambda_follows_each_episodes_length():
    batch = gae_of(lambda_length_alpha=0.2, lambda_critic=1.0, whiten_advantages=False)
    owners, mask = batch[columns.EPISODE_INDEX], batch[Columns.LOSS_MASK]
    for owner in owners.unique():
        rows = owners == owner
        trained = mask[rows]

        def read(key, rows=rows, trained=trained):
            return batch[key][rows][trained].double().numpy()

        advantages, targets = token_gae(
            read(columns.TOKEN_REWARDS),
            read(columns.VALUES),
            gamma=1.0,
            lambda_=length_adaptive_lambda(int(trained.sum()), 0.2),
            lambda_critic=1.0,
        )
        np.testing.assert_allclose(read(Columns.ADVANTAGES), advantages, atol=1e-5)
        np.testing.assert_allclose(read(Columns.VALUE_TARGETS), targets, atol=1e-5)
        returns = float(batch[columns.TOKEN_REWARDS][rows].sum())
        np.testing.assert_allclose(targets, returns, atol=1e-5)


def test_turns_have_one_value_and_one_advantage():
    batch = gae_of(gae_level="turn", gamma=0.9, whiten_advantages=False)
    weights, mask = batch[columns.VALUE_WEIGHTS], batch[Columns.LOSS_MASK]
    turns, owners = batch[columns.TURN_IDS], batch[columns.EPISODE_INDEX]
    assert float(weights.sum()) == pytest.approx(int(mask.sum()), rel=1e-5)
    for owner in owners.unique():
        rows = owners == owner
        assert int((weights[rows] > 0).sum()) == len(turns[rows][mask[rows]].unique())
        for turn in turns[rows][mask[rows]].unique():
            here = (turns[rows] == turn) & mask[rows]
            assert len(batch[Columns.ADVANTAGES][rows][here].unique()) == 1
    assert not weights[~mask].any()


def test_only_values_before_turns_are_trained_by_turn():
    config = make_config(LLMPPOConfig, gae_level="turn")
    learner = make_learner(config)
    seen = []
    module = learner.module[DEFAULT_MODULE_ID].unwrapped()
    compute = module.compute_values

    def keep(part, embeddings=None):
        values = compute(part, embeddings=embeddings)
        if values.requires_grad:
            values.register_hook(
                lambda g: seen.append((g, part[columns.VALUE_WEIGHTS]))
            )
        return values

    module.compute_values = keep
    gradients(learner, episodes())
    assert seen
    for gradient, weights in seen:
        assert not gradient[weights == 0].any()
        assert gradient[weights > 0].any()


@pytest.mark.parametrize("tokens", [1, 70])
@pytest.mark.parametrize(
    "chosen",
    [
        {"gae_level": "turn"},
        {"gae_level": "bilevel"},
        {"value_loss": "huber", "vf_clip_range": 0.2},
        {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
    ],
    ids=str,
)
def test_micro_batches_change_no_gradient_of_the_critic(chosen, tokens):
    whole = off_policy_gradients(LLMPPOConfig, micro_batch_tokens=None, **chosen)
    cut = off_policy_gradients(LLMPPOConfig, micro_batch_tokens=tokens, **chosen)
    assert_close(cut, whole)


def test_a_critic_of_logits_estimates_probabilities():
    played = episodes(reward=1.0)
    learner = make_learner(make_config(LLMPPOConfig, value_loss="bce", critic_lr=0.03))
    batch = make_batch(learner, played)
    mask = batch[Columns.LOSS_MASK]
    assert (batch[columns.VALUES][mask] == 0.5).all()  # a fresh critic's logit is 0
    for _ in range(15):
        update(learner, played)
    assert make_batch(learner, played)[columns.VALUES][mask].min() > 0.9
    with pytest.raises(ValueError, match="probability of success"):
        update(learner, episodes(reward=-3.0))


# What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "config_class, training, message",
    [
        (GRPOConfig, {"policy_loss": "gspoo"}, "Did you mean 'gspo'"),
        (GRPOConfig, {"policy_loss": {"name": "gspo", "low": -1}}, "low is -1"),
        (
            GRPOConfig,
            {"policy_loss": "sapo", "clip_param": 0.1},
            "clip_param=0.1 would",
        ),
        (GRPOConfig, {"policy_loss": "nll", "tis": "token"}, "not linear"),
        (GRPOConfig, {"loss_terms": ["entrpy"]}, "Did you mean 'entropy'"),
        (LLMPPOConfig, {"policy_loss": "sapo", "use_kl_loss": True}, "use_kl_loss"),
        (LLMPPOConfig, {"loss_agg_mode": "seq-mean-token-sum"}, "choose a policy_loss"),
        (LLMPPOConfig, {"gae_level": "step"}, "token, turn, bilevel"),
        (LLMPPOConfig, {"gae_level": "turn", "gamma_token": 0.9}, "gamma_token=0.9"),
        (LLMPPOConfig, {"lambda_critic": 1.5}, "lambda_critic=1.5"),
        (LLMPPOConfig, {"lambda_length_alpha": 0.0}, "a number > 0 or None"),
        (
            LLMPPOConfig,
            {"lambda_length_alpha": 0.1, "lambda_": 0.9},
            "lambda_length_alpha replaces it",
        ),
        (LLMPPOConfig, {"value_loss": "mae"}, "squared, huber, bce"),
        (LLMPPOConfig, {"value_loss": "bce", "vf_clip_range": 0.1}, "has none"),
        (LLMPPOConfig, {"vf_clip_range": 0.1, "vf_clip_param": 1.0}, "caps the plain"),
        (LLMPPOConfig, {"value_huber_delta": 2.0}, "not 'huber'"),
    ],
)
def test_what_would_have_no_effect_or_is_wrong_is_refused(
    config_class, training, message
):
    with pytest.raises(ConfigError, match=message):
        make_config(config_class, **training)
