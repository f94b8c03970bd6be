"""Nucleus masks: the Learner restricts tokens as the sampler did (NLPO)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from team_helpers import Alone, Run, team_config

from rllib_llm import GRPOConfig, LLMPPOConfig, PrefConfig, json_state
from rllib_llm.algorithms.config.check_nucleus_mask import check_nucleus_mask
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.episode_records import episode_record, recorded_episode
from rllib_llm.errors import ConfigError
from rllib_llm.modules.nucleus_mask import unpack_bits

# Of the learner against the sampler, whose cached passes round differently.
TOLERANCE = 1e-5


def make_config(algo=LLMPPOConfig, *, generation=None, **sections):
    generation = {"mask_top_p": 0.5, "max_new_tokens": 6, **(generation or {})}
    return team_config(
        Alone, algo, slots=2, policies=None, generation=generation, **sections
    )


@pytest.fixture(scope="module")
def run():
    """Return a run after two updates, so that policy and mask policy differ."""
    training = {"lr": 0.05, "old_logps": "learner"}
    run = Run(make_config(training=training, rollouts={"episodes_per_iteration": 8}))
    for _ in range(2):
        run.update(run.sample())
    return run


def module_of(run):
    return run.learner.module[DEFAULT_MODULE_ID].unwrapped()


def batch_of(run, episodes):
    run.learner._choose_modules()
    data = LLMTrainingData(episodes=episodes)
    batch = run.learner._make_batch_if_necessary(training_data=data)
    return dict(batch.policy_batches[DEFAULT_MODULE_ID])


def probabilities(run, batch):
    """Return the distribution of each trained token without a mask. [N, V]"""
    module, mask = module_of(run), batch[Columns.LOSS_MASK]
    with torch.no_grad():
        logits = module.lm(input_ids=batch[columns.INPUT_IDS]).logits
    return torch.softmax(logits[:, :-1][mask[:, 1:]].double(), dim=-1)


def test_sampler_and_learner_have_the_same_distribution(run):
    batch = batch_of(run, run.sample())
    mask = batch[Columns.LOSS_MASK]
    bits = batch[columns.ALLOWED_TOKENS][mask]
    module = module_of(run)
    free = probabilities(run, batch)
    allowed = unpack_bits(bits, free.shape[1])
    sizes = allowed.sum(-1)
    assert (sizes >= 1).all() and (sizes < free.shape[1]).all()
    # The recorded sets are the nucleus of the mask policy, not of the policy.
    taken = batch[columns.INPUT_IDS][mask]
    assert allowed.gather(1, taken[:, None]).all()
    scores = module._forward(batch)[Columns.ACTION_DIST_INPUTS][mask].double()
    recorded = batch[columns.BEHAVIOUR_LOGP][mask].double()
    torch.testing.assert_close(scores[:, 0], recorded, atol=TOLERANCE, rtol=0)
    # Both are the policy's probabilities, renormalised over the set.
    inside = free * allowed
    inside = inside / inside.sum(-1, keepdim=True)
    expected = inside.gather(1, taken[:, None]).log()[:, 0]
    torch.testing.assert_close(scores[:, 0], expected, atol=TOLERANCE, rtol=0)
    entropy = -torch.special.xlogy(inside, inside).sum(-1)
    torch.testing.assert_close(scores[:, 1], entropy, atol=1e-4, rtol=0)
    # Without the sets the Learner computes another distribution.
    batch.pop(columns.ALLOWED_TOKENS)
    unmasked = module._forward(batch)[Columns.ACTION_DIST_INPUTS][mask]
    assert (unmasked[:, 0] - recorded).abs().max() > 0.1


@pytest.mark.slow
def test_the_sets_are_the_mask_policys_nucleus(run):
    module = module_of(run)
    batch = batch_of(run, run.sample())
    mask = batch[Columns.LOSS_MASK]
    with torch.no_grad():
        logits = module.mask_policy(input_ids=batch[columns.INPUT_IDS]).logits
    probs = torch.softmax(logits[:, :-1][mask[:, 1:]].double(), dim=-1)
    allowed = unpack_bits(batch[columns.ALLOWED_TOKENS][mask], probs.shape[1])
    masses = (probs * allowed).sum(-1)
    least = probs.masked_fill(~allowed, 2.0).amin(-1)
    assert (masses >= 0.5 - 1e-5).all() and (masses - least < 0.5 + 1e-5).all()
    ours = (probabilities(run, batch) * allowed).sum(-1)
    assert (ours - masses).abs().max() > 0.01  # the policy has moved


@pytest.mark.slow
def test_ratios_begin_at_one_and_forbidden_tokens_get_no_gradient(run):
    batch = batch_of(run, run.sample())
    module = module_of(run)
    mask = batch[Columns.LOSS_MASK]
    kept = []
    plain = module._head

    def head(lm, hidden):
        logits = plain(lm, hidden)
        logits.retain_grad()
        kept.append(logits)
        return logits

    module._head = head
    try:
        scores = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    finally:
        del module._head
    old = batch[columns.BEHAVIOUR_LOGP]
    torch.testing.assert_close(scores[..., 0][mask], old[mask], atol=TOLERANCE, rtol=0)
    scores[mask].sum().backward()
    (logits,) = kept
    allowed = unpack_bits(batch[columns.ALLOWED_TOKENS][mask], logits.shape[1])
    assert not logits.grad[~allowed].any()
    several = allowed.sum(-1) > 1
    assert several.any() and logits.grad[several][allowed[several]].abs().max() > 0
    module.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [{"packing": True}, {"micro_batch_tokens": 64}, {"head_chunk_tokens": 5}],
)
def test_sets_survive_packing_micro_batches_and_chunks(training):
    logps = []
    for more in ({}, training):
        run = Run(make_config(training={"old_logps": "learner", **more}))
        logps.append(batch_of(run, run.sample())[Columns.ACTION_LOGP])
    torch.testing.assert_close(*logps, atol=TOLERANCE, rtol=0)


def mask_weights(run):
    return torch.cat([p.flatten() for p in module_of(run).mask_policy.parameters()])


def policy_weights(run):
    return torch.cat([p.detach().flatten() for p in module_of(run).lm.parameters()])


@pytest.mark.slow
def test_the_mask_policy_is_renewed_every_few_updates():
    generation = {"mask_update_iters": 3}
    run = Run(make_config(generation=generation, training={"lr": 0.01}))
    first = policy_weights(run).clone()
    renewed = []
    for number in range(1, 8):
        before = mask_weights(run).clone()
        run.update(run.sample())
        is_policy = torch.equal(mask_weights(run), policy_weights(run))
        assert is_policy == (number % 3 == 0)
        assert torch.equal(mask_weights(run), before) == (not is_policy)
        renewed += [number] * is_policy
        if number < 3:
            assert torch.equal(mask_weights(run), first)
        # The EnvRunner samples with the Learner's own mask policy.
        ours = run.runner.modules[DEFAULT_MODULE_ID].mask_policy
        theirs = module_of(run).mask_policy
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        assert all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert renewed == [3, 6]
    assert not any(p.requires_grad for p in module_of(run).mask_policy.parameters())


@pytest.mark.slow
def test_the_mask_policy_travels_to_env_runners_and_checkpoints(run):
    module = module_of(run)
    sent = module.get_state(inference_only=True)
    names = [n for n in sent if n.startswith("mask_policy.")]
    assert len(names) == len(list(module.lm.parameters()))
    other = Run(make_config(), learner=False)
    other.runner.receive_weights({DEFAULT_MODULE_ID: sent}, version=5)
    theirs = other.runner.modules[DEFAULT_MODULE_ID].mask_policy
    for ours, copied in zip(
        module.mask_policy.parameters(), theirs.parameters(), strict=True
    ):
        assert torch.equal(ours, copied)
    # A run's state restores both; one without a mask policy leaves the copy.
    again = Run(make_config())
    module_of(again).set_state(module.get_state())
    assert torch.equal(mask_weights(again), mask_weights(run))
    lone = {n: v for n, v in sent.items() if n not in names}
    before = mask_weights(again).clone()
    module_of(again).set_state(lone)
    assert torch.equal(mask_weights(again), before)
    module_of(again).refresh_mask_policy()
    assert torch.equal(mask_weights(again), policy_weights(again))


def test_evaluation_is_not_restricted():
    config = make_config()
    config.validate()
    config.in_evaluation = True
    runner = Run(config, learner=False).runner
    episodes = runner.sample(tasks=config.build_task_source().next_groups(2))
    turns = episodes[0].get_extra_model_outputs(columns.TURN)
    assert all(turn.allowed is None for turn in turns)


@pytest.mark.slow
def test_the_kl_to_the_reference_is_over_the_allowed_tokens():
    training = {"lr": 0.05, "ref_kl_coeff": 0.1, "ref_kl_in": "reward"}
    run = Run(make_config(training={**training, "ref_kl_estimator": "k1"}))
    first = batch_of(run, run.sample())
    # Before the first update the policy is the reference: no KL inside the mask.
    mask = first[Columns.LOSS_MASK]
    torch.testing.assert_close(
        first[columns.REF_LOGP][mask],
        first[columns.BEHAVIOUR_LOGP][mask],
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.slow
def test_grpo_trains_within_the_mask():
    run = Run(make_config(GRPOConfig, rollouts={"group_size": 4}))
    episodes = run.sample(2)
    before = run.weights()
    run.update(episodes)
    after = run.weights()
    assert any(not torch.equal(before[n], after[n]) for n in before)
    assert episode_data(episodes[0]).num_sampled


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            {"generation": {"mask_top_p": None, "mask_update_iters": 3}},
            "no mask policy",
        ),
        ({"language_model": {"lora": {"rank": 2}}}, "language_model.lora"),
        ({"generation": {"mask_top_p": 1.0}}, "mask_top_p"),
        ({"generation": {"num_speculative_tokens": 8}}, "num_speculative_tokens=8"),
        ({"generation": {"mask_update_iters": 0}}, "mask_update_iters"),
    ],
)
def test_settings_that_do_not_carry_the_mask_are_refused(sections, named):
    with pytest.raises(ConfigError, match=named):
        config = make_config(GRPOConfig, **sections)
        config.validate()


def test_another_engine_is_refused():
    config = make_config(GRPOConfig, generation={"engine": "vllm"})
    with pytest.raises(ConfigError, match="only 'torch' applies it"):
        check_nucleus_mask(config)


def test_algorithms_without_a_mask_are_refused():
    with pytest.raises(ConfigError, match="Pref has no nucleus mask"):
        make_config(PrefConfig, rollouts={"group_size": 4}).validate()


def test_stored_episodes_keep_the_mask(run):
    episode = run.sample()[0]
    line = json_state.dumps(episode_record(episode), "episode")
    parts = (episode, *agent_episodes(recorded_episode(json_state.loads(line))))
    turns, copies = (part.get_extra_model_outputs(columns.TURN) for part in parts)
    for turn, copied in zip(turns, copies, strict=True):
        np.testing.assert_array_equal(turn.allowed, copied.allowed)
