"""Old log-probabilities: their source, when they are computed, and corrections."""

import numpy as np
import pytest
import torch
from learner_helpers import (
    TINY,
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
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError

ALGORITHMS = [LLMPPOConfig, GRPOConfig]


def with_advantages(count=6, **kwargs):
    made = [fake_episode(i, turns=1 + i % 4, **kwargs) for i in range(count)]
    for i, episode in enumerate(made):
        episode_data(episode).advantage = float(np.cos(i))
    return made


def perturbed(learner, episodes, spread=0.5):
    """Give episodes log-probabilities of a behaviour policy near the learner's own."""
    batch = make_batch(learner, episodes)
    rng = np.random.default_rng(0)
    assert len(batch[columns.EPISODE_INDEX]) == len(episodes)  # a row each
    for row, episode in enumerate(episodes):
        own = batch[Columns.ACTION_LOGP][row][batch[Columns.LOSS_MASK][row]]
        noisy = own.numpy() + spread * rng.normal(size=len(own))
        place = 0
        for turn in episode.get_extra_model_outputs(columns.TURN):
            size = len(turn.action_ids)
            turn.action_logps = noisy[place : place + size].astype(np.float32)
            place += size
    return episodes


def counting(learner):
    """Count the module's forward passes without and with gradients."""
    module, calls = policy(learner), {"scored": 0, "trained": 0}
    score = module._score

    def counted(*args):
        calls["trained" if torch.is_grad_enabled() else "scored"] += 1
        return score(*args)

    module._score = counted
    return calls


# When they are computed ---------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_step_needs_no_pass_of_its_own(algorithm):
    config = make_config(algorithm, old_logps="learner", tis=None)
    learner = make_learner(config)
    calls = counting(learner)
    result = update(learner, with_advantages())[DEFAULT_MODULE_ID]
    assert calls == {"scored": 0, "trained": 1}
    assert result["ratio_mean"].peek() == 1.0
    assert result["clip_frac"].peek() == 0.0
    assert (
        result["train_inference_mismatch_max"].peek() > 1.0
    )  # random tokens, random records


@pytest.mark.parametrize("steps", [{"num_epochs": 2}, {"minibatch_size": 4}])
def test_several_steps_do(steps):
    learner = make_learner(make_config(GRPOConfig, old_logps="learner"))
    calls = counting(learner)
    update(learner, with_advantages(), **steps)
    assert calls == {"scored": 1, "trained": 2}


@pytest.mark.parametrize("training", [True, False])
def test_scoring_leaves_the_module_in_its_mode(training):
    learner = make_learner(make_config(LLMPPOConfig, old_logps="learner"))
    policy(learner).train(training)
    make_batch(learner, with_advantages())
    assert policy(learner).training is training


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("tis", [None, "token"])
def test_the_gradient_is_that_of_recomputed_log_probabilities(algorithm, tis):
    settings = {"old_logps": "learner", "tis": tis, "is_mask_low": 0.5}
    deferred, waiting = (make_learner(make_config(algorithm, **settings)) for _ in "ab")
    waiting._defer_old_logps = lambda *args: False
    made = perturbed(waiting, with_advantages())
    assert_close(gradients(deferred, made), gradients(waiting, made))


def test_the_mismatch_is_equal_in_both_passes():
    found = []
    for change in ({}, {"minibatch_size": 99}, {"num_epochs": 2}):
        learner = make_learner(make_config(GRPOConfig, old_logps="learner"))
        result = update(learner, with_advantages(), **change)[DEFAULT_MODULE_ID]
        found.append(
            [result[f"train_inference_mismatch_{k}"].peek() for k in ("mean", "max")]
        )
    learner = make_learner(make_config(LLMPPOConfig, old_logps="engine"))
    result = update(learner, with_advantages())[DEFAULT_MODULE_ID]
    found.append(
        [result[f"train_inference_mismatch_{k}"].peek() for k in ("mean", "max")]
    )
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-5)


# Whose they are -----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("engine", "model", "tis"),
    [
        ("torch", {}, None),
        ("torch", {"dtype": "bfloat16"}, "token"),
        ("torch", {"autocast": "bfloat16"}, "token"),
        ("vllm", {}, "token"),
    ],
)
def test_auto_asks_whether_the_engine_computes_the_same(algorithm, engine, model, tis):
    config = algorithm().language_model(**model).generation(engine=engine)
    assert config.resolved_tis() == tis
    assert (config.mismatch_settings() is None) == (tis is None)


def test_recorded_ones_are_taken_where_asked():
    learner = make_learner(make_config(old_logps="engine"))
    batch = make_batch(learner, with_advantages())
    assert torch.equal(batch[Columns.ACTION_LOGP], batch[columns.BEHAVIOUR_LOGP])


# Corrections --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("settings", "weigh"),
    [
        ({"tis": "token", "tis_clip": 1.3}, lambda w, whole: w.clamp(max=1.3)),
        (
            {"tis": "sequence", "tis_clip": 1.3},
            lambda w, whole: whole.clamp(max=1.3).expand_as(w),
        ),
        (
            {"tis": None, "is_mask_low": 0.7, "is_mask_high": 1.4},
            lambda w, whole: ((w >= 0.7) & (w <= 1.4)).float(),
        ),
    ],
    ids=["token", "sequence", "mask"],
)
def test_a_perturbed_behaviour_changes_the_loss_as_the_formula_says(
    settings, weigh, dtype
):
    config = make_config(GRPOConfig, old_logps="learner", **settings)
    learner = make_learner(config.language_model(dtype=dtype))
    made = perturbed(learner, with_advantages())
    with learner.in_update():  # with the attention of an update
        batch = make_batch(learner, made)
    mask = batch[Columns.LOSS_MASK]
    log_ratio = batch[Columns.ACTION_LOGP] - batch[columns.BEHAVIOUR_LOGP]
    whole = (log_ratio * mask).sum(1, keepdim=True).exp()
    weights = weigh(log_ratio.exp(), whole) * mask
    # The first step's ratio is 1, so the loss is minus the weighted advantage.
    expected = -(weights * batch[Columns.ADVANTAGES]).sum() / mask.sum()
    plain = -batch[Columns.ADVANTAGES][mask].mean()
    assert abs(expected - plain) > 1e-3
    result = update(learner, made)[DEFAULT_MODULE_ID]
    assert result["policy_loss"].peek() == pytest.approx(float(expected), abs=1e-5)
    mean = float(weights.sum() / mask.sum())
    assert result["is_weight_mean"].peek() == pytest.approx(mean, rel=1e-4)
    effective = float(weights.sum() ** 2 / (weights**2).sum() / mask.sum())
    assert 0.0 < effective < 0.999
    assert result["is_effective_sample_frac"].peek() == pytest.approx(effective, 1e-4)
    assert "is_weight_square" not in result


@pytest.mark.parametrize("micro_batch_tokens", [None, 1])
def test_ppos_loss_is_weighed_alike(micro_batch_tokens):
    settings = {"old_logps": "learner", "whiten_advantages": False, "tis": "token"}
    config = make_config(micro_batch_tokens=micro_batch_tokens, **settings)
    learner = make_learner(config)
    made = perturbed(learner, with_advantages())
    batch = make_batch(learner, made)
    mask = batch[Columns.LOSS_MASK]
    ratio = (batch[Columns.ACTION_LOGP] - batch[columns.BEHAVIOUR_LOGP]).exp()
    weighed = ratio.clamp(max=2.0) * batch[Columns.ADVANTAGES]
    result = update(learner, made)[DEFAULT_MODULE_ID]
    expected = -float(weighed[mask].mean())
    assert result["policy_loss"].peek() == pytest.approx(expected, abs=1e-5)
    # The critic's loss is not weighed.
    critic = float(batch[Columns.VALUE_TARGETS][mask].square().mean())
    assert result["vf_loss"].peek() == pytest.approx(critic, rel=1e-4)


def test_shares_and_extremes_are_logged():
    config = make_config(
        GRPOConfig, old_logps="learner", tis="token", tis_clip=1.2, is_mask_high=1.5
    )
    learner = make_learner(config)
    made = perturbed(learner, with_advantages())
    batch = make_batch(learner, made)
    log_ratio = batch[Columns.ACTION_LOGP] - batch[columns.BEHAVIOUR_LOGP]
    ratio = log_ratio.exp()[batch[Columns.LOSS_MASK]]
    result = update(learner, made)[DEFAULT_MODULE_ID]
    for key, expected in (
        ("is_clipped_frac", (ratio > 1.2).float().mean()),
        ("is_masked_frac", (ratio > 1.5).float().mean()),
        ("is_ratio_max", ratio.max()),
    ):
        assert result[key].peek() == pytest.approx(float(expected), rel=1e-4), key
        assert result[key].peek() > 0, key


def test_rows_of_one_sequence_share_its_weight():
    config = make_config(GRPOConfig, old_logps="learner", is_sequence_mask_high=1.001)
    learner = make_learner(config)
    made = [fake_episode(i, turns=3, breaks=True) for i in range(4)]
    for i, episode in enumerate(made):
        episode_data(episode).advantage = float(1 + i)
    batch = make_batch(learner, made)
    mask, owner = batch[Columns.LOSS_MASK], batch[columns.EPISODE_INDEX]
    assert len(owner) == 8
    log_ratio = batch[Columns.ACTION_LOGP] - batch[columns.BEHAVIOUR_LOGP]
    batch[Columns.ADVANTAGES] = batch[Columns.ADVANTAGES].clone()
    learner._correct_mismatch(DEFAULT_MODULE_ID, batch)
    for index in range(4):
        rows = owner == index
        kept = log_ratio[rows][mask[rows]].mean().exp() <= 1.001
        found = batch[Columns.ADVANTAGES][rows][mask[rows]]
        assert (found == (1 + index if kept else 0)).all()


# What is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tis": "tokens"},
            "tis='tokens' must be one of auto, token, sequence",
        ),
        ({"tis_clip": 0}, "tis_clip=0 must be a number > 0"),
        ({"is_mask_low": 1.5}, "is_mask_low=1.5.*must include 1"),
        ({"is_sequence_mask_high": 0.9}, "is_sequence_mask_high=0.9.*must include 1"),
        ({"tis": "token", "old_logps": "engine"}, "Set old_logps='learner'"),
        ({"is_mask_high": 5.0, "old_logps": "engine"}, "Set old_logps='learner'"),
        ({"old_logps": "engin"}, "Did you mean 'engine'"),
    ],
)
def test_bad_settings_fail_before_anything_starts(settings, message):
    config = LLMPPOConfig().environment("guess_number-v0").language_model(tiny=TINY)
    with pytest.raises(ConfigError, match=message):
        config.training(**settings).validate()


def test_ages_are_those_of_tokens_not_of_turns():
    config = make_config(GRPOConfig, old_logps="engine")
    learner = make_learner(config)
    made = with_advantages()
    turns = [t for e in made for t in e.get_extra_model_outputs(columns.TURN)]
    for index, turn in enumerate(turns):
        turn.weights_seq_no = -(index % 4)
        turn.version_changes = ((1, 0),) if index % 3 == 0 else ()
    ages = np.concatenate([-turn.token_versions for turn in turns])
    result = update(learner, made)[DEFAULT_MODULE_ID]
    assert result["policy_staleness_mean"].peek() == pytest.approx(ages.mean())
    assert "policy_staleness_max" not in result  # nothing was sampled ahead
    config.sample_ahead = 1
    learner = make_learner(config)
    result = update(learner, made)[DEFAULT_MODULE_ID]
    assert result["policy_staleness_mean"].peek() == pytest.approx(ages.mean())
    assert result["policy_staleness_max"].peek() == ages.max() == 3
    mixed = np.mean([bool(turn.version_changes) for turn in turns])
    assert result["mixed_version_turn_frac"].peek() == pytest.approx(mixed)
