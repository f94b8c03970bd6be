"""Batch statistics are those of all Learners' tokens, however few rows one has."""

from __future__ import annotations

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
    weights,
)
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from side_by_side import update_side_by_side
from team_helpers import (
    Run,
    Uneven,
    assert_bit_equal,
    assert_near,
    make_team_learner,
    team_config,
    turns_of,
    weights_of,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.errors import ConfigError


def episodes(count=7, noise=0.4):
    """Return episodes of other lengths and advantages, sampled near the tiny policy."""
    found = []
    for seed in range(count):
        episode = fake_episode(seed, turns=1 + seed % 4)
        data = episode_data(episode)
        data.advantage, data.success = float(np.cos(3 * seed)), seed % 2 == 0
        found.append(episode)
    learner = make_learner(make_config(GRPOConfig))
    batch, rng = make_batch(learner, found), np.random.default_rng(0)
    old = batch[Columns.ACTION_LOGP].numpy()
    for index, episode in enumerate(found):
        rows = batch[columns.EPISODE_INDEX].numpy() == index
        for number, turn in enumerate(episode.get_extra_model_outputs(columns.TURN)):
            here = batch[columns.TURN_IDS].numpy()[rows] == number
            turn.action_logps[:] = old[rows][here] + noise * rng.normal(size=here.sum())
    return found


def pair_of(config):
    return [make_learner(config) for _ in range(2)]


def gradients_of_pair(config, played, monkeypatch):
    """The gradient that two Learners agree on, which is not taken."""
    pair, taken = pair_of(config), [{}, {}]
    for learner, into in zip(pair, taken, strict=True):
        names = {p: n for n, p in policy(learner).named_parameters()}

        def keep(grads, into=into, names=names):
            into.update({names[p]: g.clone() for p, g in grads.items()})

        learner.apply_gradients = keep
        learner.config.grad_clip = None
    shards = update_side_by_side(pair, played, monkeypatch)
    assert_bit_equal(*taken)
    assert len({len(shard) for shard in shards}) == 2  # unequal indeed
    return taken[0]


WHOLE_BATCH = [
    {"loss_terms": [{"name": "kl_cov", "share": 0.2, "weight": 5.0}]},
    {"loss_terms": [{"name": "entropy", "top": 0.3}]},
    {"loss_terms": [{"name": "nll_success", "weight": 0.3}]},
    {"token_advantage_transforms": [{"name": "entropy_shaping", "alpha": 0.5}]},
    {"token_advantage_transforms": [{"name": "top_entropy", "share": 0.3}]},
    # All tokens of the band, so that it does not matter which are drawn.
    {"token_advantage_transforms": [{"name": "clip_cov", "share": 1.0, "low": 0.0}]},
    {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
]


@pytest.mark.parametrize("chosen", WHOLE_BATCH, ids=str)
def test_two_learners_have_the_gradient_of_one(chosen, monkeypatch):
    config = make_config(GRPOConfig, old_logps="engine", **chosen)
    whole = gradients(make_learner(config), episodes())
    # Entropies of a tiny policy are nearly alike, so that scores magnify rounding.
    found = gradients_of_pair(config, episodes(), monkeypatch)
    assert_close(found, whole, atol=3e-5)
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-3


def test_clip_cov_draws_its_share_of_all_tokens(monkeypatch):
    spec = {"name": "clip_cov", "share": 0.1, "low": -100.0, "high": 100.0}
    config = make_config(
        GRPOConfig, old_logps="engine", token_advantage_transforms=[spec]
    )
    pair, counts = pair_of(config), []
    for learner in pair:
        log_batch = learner._log_batch

        def keep(data, log_batch=log_batch):
            batch = data[DEFAULT_MODULE_ID]
            mask = batch[Columns.LOSS_MASK]
            dropped = int((batch[Columns.ADVANTAGES][mask] == 0).sum())
            counts.append((dropped, int(mask.sum())))
            log_batch(data)

        learner._log_batch = keep
    update_side_by_side(pair, episodes(), monkeypatch)
    dropped, trained = np.sum(counts, axis=0)
    assert dropped == int(0.1 * trained) > 1


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_a_minibatch_without_trained_tokens_takes_no_step(config_class, monkeypatch):
    config = make_config(config_class)
    pair, played = pair_of(config), episodes()
    for episode in played:
        episode_data(episode).stop_policy = StopPolicy.MASK
    before = weights(pair[0])
    update_side_by_side(pair, played, monkeypatch)
    for learner in pair:
        assert_bit_equal(before, weights(learner))


def test_some_minibatches_without_trained_tokens_do_not_end_the_others(monkeypatch):
    pair, played = pair_of(make_config(GRPOConfig)), episodes()
    for episode in played[2:]:
        episode_data(episode).stop_policy = StopPolicy.MASK
    before = weights(pair[0])
    update_side_by_side(pair, played, monkeypatch, minibatch_size=1, num_epochs=2)
    assert_bit_equal(weights(pair[0]), weights(pair[1]))
    after = weights(pair[0])
    assert any(not torch.equal(before[n], after[n]) for n in before)


SHARED = (
    "total_loss",
    "policy_loss",
    "entropy",
    "clip_frac",
    "approx_kl_k3",
    "ratio_mean",
    "grad_norm",
    "padding_frac",
    "advantage_abs_mean",
    "trained_token_frac",
    "policy_staleness_mean",
    "ref_kl",
)


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_what_is_logged_is_over_all_learners_tokens(config_class, monkeypatch):
    training = {"clip_param": 0.1, "ref_kl_coeff": 0.1, "old_logps": "engine"}
    keys = SHARED
    if config_class is LLMPPOConfig:
        training["micro_batch_tokens"] = 64
        keys = (*SHARED, "vf_loss", "vf_loss_unclipped", "vf_explained_var")
        keys = tuple(k for k in keys if k != "padding_frac")  # other cuts
    config = make_config(config_class, **training)
    one = make_learner(config)
    expected = update(one, episodes())[DEFAULT_MODULE_ID]
    pair, results = pair_of(config), []
    for learner in pair:
        original = learner.update

        def keep(original=original, **kwargs):
            results.append(original(**kwargs)[DEFAULT_MODULE_ID])

        learner.update = keep
    update_side_by_side(pair, episodes(), monkeypatch)
    assert len(results) == 2
    for key in keys:
        if key == "padding_frac":
            continue
        wanted = pytest.approx(float(expected[key].peek()), rel=1e-3, abs=1e-6)
        assert float(results[0][key].peek()) == wanted, key
        assert float(results[1][key].peek()) == wanted, key


def test_a_learner_without_rows_of_a_policy_adds_nothing_to_its_moments(monkeypatch):
    """Ben acts in one episode, which only one of two Learners gets."""
    training = {
        "lr": 1e-2,
        "loss_terms": [{"name": "kl_cov", "share": 0.3}, "nll_success"],
        "token_advantage_transforms": [
            "entropy_shaping",
            {"name": "clip_cov", "share": 1.0},
        ],
    }
    config = team_config(
        Uneven, GRPOConfig, training=training, rollouts={"group_size": 2}
    )
    one = Run(config)
    pair = [make_team_learner(config) for _ in range(2)]
    played = one.runner.sample(tasks=TaskSource(5, 2).next_groups(24))
    ben = [e for e in played if any(who == "ben_0" for who, _ in turns_of(e))]
    chosen = ben[:1] + [e for e in played if e not in ben][:6]
    for index, episode in enumerate(chosen):
        for part in episode.agent_episodes.values():
            episode_data(part).success = index % 2 == 0
            episode_data(part).advantage = float(np.cos(index))
    update(one.learner, chosen)
    shards = update_side_by_side(pair, chosen, monkeypatch)
    actors = [{who for e in shard for who, _ in turns_of(e)} for shard in shards]
    assert sorted(map(len, actors)) == [1, 2]
    for module_id in "ab":
        whole = weights_of(one.learner, module_id)
        for learner in pair:
            assert_near(whole, weights_of(learner, module_id), atol=3e-4)


def of_the_batch(batch):
    """A loss term that standardises within whatever it is given."""
    mean, std = batch.moments(batch.entropy.detach())
    return (batch.entropy - mean) / (std + 1e-6)


def test_moments_in_a_micro_batch_are_refused():
    name = f"{__name__}:of_the_batch"
    with pytest.raises(ConfigError, match="how the batch is split"):
        make_config(GRPOConfig, loss_terms=[name])
