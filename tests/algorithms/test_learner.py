"""The Learner: exactly-once epochs, loss denominators, warm-up, NaN policy."""

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

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy, StopReason
from rllib_llm.errors import ConfigError, RLlibLLMError


def episodes(count=6, **kwargs):
    return [fake_episode(i, turns=1 + i % 4, **kwargs) for i in range(count)]


def with_advantages(count=6, **kwargs):
    made = episodes(count, **kwargs)
    for i, episode in enumerate(made):
        episode_data(episode).advantage = float(np.cos(i))
    return made


CASES = [
    (None, {}),
    (GRPOConfig, {"loss_agg_mode": "token-mean"}),
    (GRPOConfig, {"loss_agg_mode": "seq-mean-token-mean"}),
    (
        GRPOConfig,
        {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_agg_constant": 20},
    ),
    (GRPOConfig, {"ref_kl_coeff": 0.1, "loss_agg_mode": "seq-mean-token-sum"}),
]


def config_for(config_class, training, **more):
    args = (config_class,) if config_class else ()
    return make_config(*args, **training, **more)


@pytest.mark.parametrize(("config_class", "training"), CASES)
def test_micro_batches_do_not_change_the_gradient(config_class, training):
    whole = make_learner(config_for(config_class, training, micro_batch_tokens=None))
    split = make_learner(config_for(config_class, training, micro_batch_tokens=1))
    assert_close(
        gradients(whole, with_advantages()), gradients(split, with_advantages())
    )


@pytest.mark.parametrize(("config_class", "training"), CASES)
def test_one_row_per_turn_gives_the_merged_gradient(config_class, training):
    merged = config_for(config_class, training)
    per_turn = config_for(config_class, training).rollouts(row_per_turn=True)
    a = gradients(make_learner(merged), with_advantages())
    b = gradients(make_learner(per_turn), with_advantages())
    assert_close(a, b)


def test_row_order_does_not_change_the_gradient():
    a = gradients(make_learner(make_config()), episodes())
    b = gradients(make_learner(make_config()), episodes()[::-1])
    assert_close(a, b)


def test_ppo_gradient_equals_a_hand_written_loop():
    config = make_config(whiten_advantages=False, entropy_coeff=0.01)
    learner, reference = make_learner(config), make_learner(config)
    batch = make_batch(reference, episodes())
    module = policy(reference)
    total, count = 0.0, 0
    for r in range(len(batch[columns.INPUT_IDS])):
        n = int(batch[columns.ATTENTION_MASK][r].sum())
        ids = batch[columns.INPUT_IDS][r, :n]
        out = module.lm(input_ids=ids[None], output_hidden_states=True)
        logps = torch.log_softmax(out.logits[0], -1)
        values = module.value_head(out.hidden_states[-1])[0]
        for t in range(1, n):
            if not batch[Columns.LOSS_MASK][r, t]:
                continue
            advantage = batch[Columns.ADVANTAGES][r, t]
            logp = logps[t - 1, ids[t]]
            ratio = (logp - batch[Columns.ACTION_LOGP][r, t]).exp()
            clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
            entropy = -(logps[t - 1].exp() * logps[t - 1]).sum()
            error = (values[t - 1] - batch[Columns.VALUE_TARGETS][r, t]) ** 2
            total = total - torch.min(ratio * advantage, clipped * advantage)
            total = total + config.vf_loss_coeff * error.clamp(0, config.vf_clip_param)
            total = total - 0.01 * entropy
            count += 1
    (total / count).backward()
    expected = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert_close(gradients(learner, episodes()), expected)


def test_first_ratio_is_one():
    learner = make_learner(make_config(old_logps="learner"))
    result = update(learner, episodes())[DEFAULT_MODULE_ID]
    assert abs(result["ratio_mean"].peek() - 1.0) < 1e-5
    assert result["clip_frac"].peek() == 0.0


def test_masked_tokens_do_not_matter():
    config = make_config(GRPOConfig)
    a, b = make_learner(config), make_learner(config)
    changed = with_advantages()
    for episode in changed:
        for turn in episode.get_extra_model_outputs(columns.TURN):
            assert len(turn.action_logps) == len(turn.action_ids)
    first = gradients(a, with_advantages())
    # The final observation is a prompt without an answer: it must not be trained.
    truncated = with_advantages()
    for episode in truncated:
        episode.is_terminated, episode.is_truncated = False, True
        episode_data(episode).prompt = None
    assert_close(first, gradients(b, truncated))


def test_every_episode_once_per_epoch_whole_rows_together():
    learner = make_learner(make_config())
    made = [fake_episode(i, turns=3, breaks=i % 2 == 0) for i in range(7)]
    data = {DEFAULT_MODULE_ID: make_batch(learner, made)}
    seen = [
        mb.policy_batches[DEFAULT_MODULE_ID][columns.EPISODE_INDEX].tolist()
        for mb in learner._minibatches(data, [5, 6], 3, 21)
    ]
    assert len(seen) == 2 * 3  # ceil(7 / 3) steps per epoch
    rows = data[DEFAULT_MODULE_ID][columns.EPISODE_INDEX].tolist()
    for epoch in (seen[:3], seen[3:]):
        assert sorted(sum(epoch, [])) == sorted(rows)
        sets = [set(part) for part in epoch]
        assert sum(map(len, sets)) == 7  # no episode in two minibatches
    assert seen[:3] != seen[3:]


def test_orders_differ_between_epochs_and_between_updates(monkeypatch):
    learner = make_learner(make_config())
    taken, minibatches = [], learner._minibatches

    def record(data, seeds, *arguments):
        taken.append(list(seeds))
        return minibatches(data, seeds, *arguments)

    monkeypatch.setattr(learner, "_minibatches", record)
    for _ in range(2):
        update(learner, episodes(4), num_epochs=3, minibatch_size=2)
    assert [len(seeds) for seeds in taken] == [3, 3]
    assert len({seed for seeds in taken for seed in seeds}) == 6


def test_minibatches_are_counted_over_all_learners(monkeypatch):
    """Another Learner has four episodes as well: eight, two at a time."""
    from rllib_llm.algorithms.learner import llm_learner as module

    learner = make_learner(make_config())
    data = {DEFAULT_MODULE_ID: make_batch(learner, [fake_episode(i) for i in range(4)])}
    assert len(list(learner._minibatches(data, [5], 2, 4))) == 2
    monkeypatch.setattr(module, "all_reduce_sum", lambda each, _: [n + 4 for n in each])
    assert len(list(learner._minibatches(data, [5], 2, 4))) == 4


def test_minibatches_cover_uneven_counts():
    learner = make_learner(make_config())
    before = weights(learner)
    update(learner, episodes(5), num_epochs=2, minibatch_size=2)
    after = weights(learner)
    assert any(not torch.equal(before[n], after[n]) for n in before)


def test_stop_policies_reach_the_rows():
    learner = make_learner(make_config())
    made = [
        fake_episode(0, stop=StopReason.TERMINATED),
        fake_episode(1, stop=StopReason.MAX_TURNS),
        fake_episode(2, stop=StopReason.MAX_TURNS),
    ]
    episode_data(made[2]).stop_policy = StopPolicy.MASK
    batch = make_batch(learner, made)
    bootstrap = batch[columns.BOOTSTRAP_COLUMN]
    assert bootstrap[0] == -1 and bootstrap[1] > 0
    assert batch[Columns.LOSS_MASK][:2].any(dim=1).all()
    assert not batch[Columns.LOSS_MASK][2].any()


def test_truncation_bootstraps_and_termination_does_not():
    config = make_config(whiten_advantages=False, lambda_=1.0)
    learner = make_learner(config)
    torch.nn.init.constant_(policy(learner).value_head.out.bias, 0.7)
    ended = fake_episode(3, reward=0.0, stop=StopReason.TERMINATED)
    cut = fake_episode(3, reward=0.0, stop=StopReason.MAX_TURNS)
    batch = make_batch(learner, [ended, cut])
    for row, target in ((0, 0.0), (1, 0.7)):
        found = batch[Columns.VALUE_TARGETS][row][batch[Columns.LOSS_MASK][row]]
        torch.testing.assert_close(found, torch.full_like(found, target))


def test_without_a_critic_a_cut_episode_ends_with_its_last_turn():
    cut = fake_episode(1, stop=StopReason.MAX_TURNS)
    lengths = []
    for config_class in (LLMPPOConfig, GRPOConfig):
        learner = make_learner(make_config(config_class))
        episode_data(cut).advantage = 1.0
        batch = make_batch(learner, [cut])
        lengths.append(int(batch[columns.ATTENTION_MASK].sum()))
    assert (batch[columns.BOOTSTRAP_COLUMN] == -1).all()
    assert lengths[0] == lengths[1] + len(episode_data(cut).prompt.ids)


def test_undiscounted_advantage_is_the_return_of_the_episode():
    learner = make_learner(make_config(whiten_advantages=False, lambda_=1.0))
    batch = make_batch(learner, [fake_episode(5, turns=4, reward=2.5)])
    found = batch[Columns.ADVANTAGES][batch[Columns.LOSS_MASK]]
    torch.testing.assert_close(found, torch.full_like(found, 2.5))


def test_gamma_counts_turns_not_tokens():
    learner = make_learner(make_config(whiten_advantages=False, lambda_=1.0, gamma=0.5))
    batch = make_batch(learner, [fake_episode(5, turns=3, reward=1.0)])
    for turn, expected in ((0, 0.25), (1, 0.5), (2, 1.0)):
        found = batch[Columns.ADVANTAGES][batch[columns.TURN_IDS] == turn]
        torch.testing.assert_close(found, torch.full_like(found, expected))


def test_whitening_covers_trained_tokens_only():
    learner = make_learner(make_config())
    batch = make_batch(learner, episodes())
    found = batch[Columns.ADVANTAGES][batch[Columns.LOSS_MASK]]
    assert abs(float(found.mean())) < 1e-5 and abs(float(found.std()) - 1) < 1e-4
    assert (batch[Columns.ADVANTAGES][~batch[Columns.LOSS_MASK]] == 0).all()


def test_critic_warm_up_moves_only_the_critic():
    learner = make_learner(make_config(critic_warmup_iters=1, critic_lr=1e-2))
    before = weights(learner)
    update(learner, episodes())
    during = weights(learner)
    for name in before:
        moved = not torch.equal(before[name], during[name])
        assert moved == name.startswith("value_head.out"), name
    update(learner, episodes())
    after = weights(learner)
    assert not torch.equal(
        during["lm.model.norm.weight"], after["lm.model.norm.weight"]
    )


def test_nan_gradient_is_skipped_and_counted_or_fatal():
    learner = make_learner(make_config(GRPOConfig))
    poisoned = with_advantages()
    episode_data(poisoned[0]).advantage = float("inf")
    before = weights(learner)
    result = update(learner, poisoned)[DEFAULT_MODULE_ID]
    assert result["nan_steps_skipped"].peek() == 1
    for name, value in weights(learner).items():
        assert torch.equal(before[name], value), name
    strict = make_learner(make_config(GRPOConfig, nan_policy="error"))
    with pytest.raises(RLlibLLMError, match="Non-finite gradient"):
        update(strict, poisoned)


def test_reference_kl_is_zero_at_first_then_pulls_back():
    config = make_config(GRPOConfig, ref_kl_coeff=0.5, lr=1e-2)
    learner = make_learner(config)
    made = with_advantages()
    first = update(learner, made)[DEFAULT_MODULE_ID]
    assert abs(first["ref_kl"].peek()) < 1e-6
    second = update(learner, made)[DEFAULT_MODULE_ID]
    assert second["ref_kl"].peek() > 1e-4


def test_adaptive_reference_kl_follows_rllibs_rule():
    learner = make_learner(make_config(GRPOConfig, ref_kl_coeff=0.1, ref_kl_target=1.0))
    update(learner, with_advantages())  # KL 0 < target / 2
    assert learner._ref_kl_coeffs[DEFAULT_MODULE_ID] == pytest.approx(0.05)


@pytest.mark.parametrize("elsewhere, factor", [(5.0, 1.5), (2.0, 1.0), (0.4, 0.5)])
def test_learners_adapt_the_reference_kl_together(monkeypatch, elsewhere, factor):
    """The KL is 0 here and ``elsewhere`` in as many tokens of another Learner."""
    from rllib_llm.algorithms.learner import loss_mixin as module

    def two_learners(values, device):
        if len(values) < 2:
            return list(values)
        kl, weight = values
        return [kl + elsewhere * weight, 2 * weight]

    learner = make_learner(make_config(GRPOConfig, ref_kl_coeff=0.1, ref_kl_target=1.0))
    monkeypatch.setattr(module, "all_reduce_sum", two_learners)
    update(learner, with_advantages())
    assert learner._ref_kl_coeffs[DEFAULT_MODULE_ID] == pytest.approx(0.1 * factor)


def drifted_learner(config_class=GRPOConfig, **training):
    """A learner whose policy has left its reference."""
    learner = make_learner(make_config(config_class, ref_kl_coeff=0.5, **training))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy(learner).lm.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return learner


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
@pytest.mark.parametrize("ref_kl_clip", [0.5, 1e6, None])
def test_the_reference_kl_of_a_token_is_held_at_its_clip(config_class, ref_kl_clip):
    learner = drifted_learner(config_class, ref_kl_clip=ref_kl_clip)
    batch = make_batch(learner, with_advantages())
    mask = batch[Columns.LOSS_MASK]
    d = (batch[columns.REF_LOGP] - batch[Columns.ACTION_LOGP])[mask].double()
    k3 = d.exp() - d - 1
    result = update(learner, with_advantages())[DEFAULT_MODULE_ID]
    if ref_kl_clip is None:
        assert "ref_kl_clip_frac" not in result
        expected = k3.mean()
    else:
        share = (k3 >= ref_kl_clip).double().mean()
        assert result["ref_kl_clip_frac"].peek() == pytest.approx(float(share))
        assert (0 < share < 1) == (ref_kl_clip == 0.5)
        expected = k3.clamp(max=ref_kl_clip).mean()
    assert result["ref_kl"].peek() == pytest.approx(float(expected), rel=1e-3)


def test_the_reference_kl_in_the_reward_is_held_at_its_clip():
    lambdas = {"lambda_": 0.0, "lambda_token": 0.0}
    training = {"ref_kl_in": "reward", "whiten_advantages": False, **lambdas}
    learner = drifted_learner(LLMPPOConfig, ref_kl_clip=0.5, **training)
    batch = make_batch(learner, [fake_episode(1, reward=0.0)])
    mask = batch[Columns.LOSS_MASK]
    d = (batch[columns.REF_LOGP] - batch[Columns.ACTION_LOGP])[mask]
    cost = 0.5 * (d.exp() - d - 1).clamp(max=0.5)
    # The critic says 0 and lambdas are 0: an advantage is the token's own reward.
    torch.testing.assert_close(
        batch[Columns.ADVANTAGES][mask], -cost, atol=1e-5, rtol=1e-4
    )
    assert (cost == 0.25).any() and (cost < 0.25).any()


@pytest.mark.parametrize(
    "training, message",
    [
        ({"ref_kl_clip": 0.0}, "ref_kl_clip=0.0 must be a number > 0"),
        ({"ref_kl_clip": float("inf")}, "or None"),
        ({"ref_kl_clip": 5.0, "ref_kl_estimator": "k2"}, "ref_kl_clip=5.0 would have"),
    ],
)
def test_a_clip_of_the_reference_kl_is_checked(training, message):
    with pytest.raises(ConfigError, match=message):
        make_config(GRPOConfig, ref_kl_coeff=0.1, **training)


def test_reference_kl_in_reward_lowers_rewards_of_drifted_tokens():
    config = make_config(
        ref_kl_coeff=1.0,
        ref_kl_in="reward",
        ref_kl_estimator="k1",
        old_logps="learner",
        whiten_advantages=False,
        lambda_=1.0,
    )
    learner = make_learner(config)
    made = [fake_episode(1, reward=0.0)]
    clean = make_batch(learner, made)
    assert clean[Columns.ADVANTAGES].abs().max() < 1e-5
    with torch.no_grad():
        for parameter in policy(learner).lm.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    drifted = make_batch(learner, made)
    mask = drifted[Columns.LOSS_MASK]
    kl = (drifted[Columns.ACTION_LOGP] - drifted[columns.REF_LOGP])[mask]
    found = drifted[Columns.ADVANTAGES][mask]
    # gamma = 1 and values 0: the advantage is the penalty still to come.
    expected = -torch.flip(torch.cumsum(torch.flip(kl, [0]), 0), [0])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert found.abs().max() > 1e-3


def test_learner_state_resumes_exactly():
    config = make_config(
        GRPOConfig, ref_kl_coeff=0.1, ref_kl_target=1.0, entropy_coeff=0.01
    )
    straight, saved = make_learner(config), make_learner(config)
    for learner in (straight, saved):
        update(learner, with_advantages())
    resumed = make_learner(config)
    resumed.set_state(saved.get_state())
    update(straight, with_advantages(4))
    update(resumed, with_advantages(4))
    a, b = weights(straight), weights(resumed)
    for name in a:
        assert torch.equal(a[name], b[name]), name
    assert straight._ref_kl_coeffs == resumed._ref_kl_coeffs


def test_sharding_keeps_episodes_whole_and_balances_tokens():
    made = [fake_episode(i, turns=1 + i % 5) for i in range(20)]
    shards = LLMTrainingData(episodes=made).shard(3)
    parts = [s.episodes for s, _ in shards]
    assert sorted(id(e) for p in parts for e in p) == sorted(id(e) for e in made)
    loads = [sum(len(episode_data(e).ids) for e in p) for p in parts]
    assert max(loads) - min(loads) <= max(len(episode_data(e).ids) for e in made)
    with pytest.raises(ValueError, match="2 episodes cannot feed 3 Learners"):
        LLMTrainingData(episodes=made[:2]).shard(3)
