"""Scorers beside a policy: gradient, scores, isolation, driver, configuration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    make_learner,
    policy,
    update,
    weights,
)
from ray.rllib.core import DEFAULT_MODULE_ID
from scorer_helpers import (
    LOG_RATIO,
    Alone,
    away_from_zero,
    driver_of,
    module_of,
    scorer_config,
    scorer_gradients,
    units_of,
    whole_episodes,
)
from side_by_side import call_side_by_side

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.advantages.estimators.scored import scorer as scorer_advantage
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import MissingScores, example_table
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.rewards.learned import scorer as scorer_reward

SPACES = {DEFAULT_MODULE_ID: (UnicodeText(), UnicodeText())}


def turns_of(episode):
    return episode.get_extra_model_outputs(columns.TURN)


def slow_turn_scores(learner, episode):
    """Return the scores of turns by the plain model, one row at a time. [H]"""
    module, config = module_of(learner), learner.config
    ids, ends, spans = [], [], []
    for turn in turns_of(episode):
        ids += turn.prompt_ids.tolist()
        spans.append((len(ids), len(ids) + len(turn.action_ids)))
        ids += turn.action_ids.tolist()
        ends.append(len(ids) - 1)
    rows = torch.tensor([ids])
    if config.scorer_scores == "head":
        hidden = module.lm.base_model(input_ids=rows).last_hidden_state
        return module.value_head(hidden)[0, ends]
    logits = module.lm(input_ids=rows).logits[0, :, : module.vocabulary]
    logps = torch.log_softmax(logits / module.model_config["temperature"], dim=-1)
    scores = []
    for turn, (first, end) in zip(turns_of(episode), spans, strict=True):
        own = [logps[t - 1, ids[t]] for t in range(first, end)]
        old = torch.from_numpy(turn.action_logps).sum()
        scores.append(config.scorer_beta * (torch.stack(own).sum() - old))
    return torch.stack(scores)


def slow_score(learner, episode):
    scores, pool = slow_turn_scores(learner, episode), learner.config.scorer_pool
    return {"last": scores[-1], "sum": scores.sum(), "mean": scores.mean()}[pool]


def slow_loss(learner, units, prior=0.0):
    """Return the mean loss of a scorer's units, by loops."""
    loss, losses = learner.config.scorer_loss, []
    for unit in units:
        if loss == "pairwise":
            sides = unit.agent_episodes
            one, other = (
                slow_score(learner, sides[name]) for name in ("chosen", "rejected")
            )
            losses.append(torch.log1p(torch.exp(other - one)))
            continue
        if loss == "process":
            labels = torch.tensor(unit.get_rewards())
            chances = torch.sigmoid(slow_turn_scores(learner, unit))
            for label, chance in zip(labels, chances, strict=True):
                right, wrong = torch.log(chance), torch.log(1 - chance)
                losses.append(-label * right - (1 - label) * wrong)
            continue
        target = float(bool(episode_data(unit).success))
        if loss == "return":
            total = float(np.sum(unit.get_rewards()))
            losses.append((slow_score(learner, unit) - total) ** 2)
            continue
        scores = slow_turn_scores(learner, unit)
        for score in scores if loss == "expert" else [slow_score(learner, unit)]:
            chance = torch.sigmoid(score + prior)
            losses.append(-torch.log(chance if target else 1 - chance))
    return torch.stack(losses).mean()


KINDS = [
    {"loss": "pairwise"},
    {"loss": "pairwise", "pool": "sum"},
    {"loss": "pairwise", **LOG_RATIO},
    {"loss": "outcome"},
    {"loss": "outcome", **LOG_RATIO, "pool": "sum"},
    {"loss": "return", "pool": "sum"},
    {"loss": "return", "pool": "mean"},
    {"loss": "expert"},
]


# Learner ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_gradient_is_that_of_the_loss(kind):
    learner = make_learner(scorer_config(training={"micro_batch_tokens": 48}, **kind))
    away_from_zero(learner)
    units = units_of(kind["loss"])
    prior = -1.5 if kind["loss"] == "expert" else 0.0
    found = scorer_gradients(learner, units, prior_logit=prior)
    module = module_of(learner)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(
        slow_loss(learner, units, prior), list(trained.values()), allow_unused=True
    )
    reached = {n: g for n, g in zip(trained, expected, strict=True) if g is not None}
    assert max(float(g.abs().max()) for g in reached.values()) > 1e-3
    for name, grad in reached.items():
        torch.testing.assert_close(found[name], grad, atol=5e-6, rtol=1e-3)


def test_packed_rows_have_the_same_gradient():
    taken = []
    for training in ({}, {"packing": True, "micro_batch_tokens": 64}):
        learner = make_learner(scorer_config(training=training, pool="sum"))
        away_from_zero(learner)
        taken.append(scorer_gradients(learner, units_of("pairwise")))
    assert_close(*taken, atol=5e-6)


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
def test_two_learners_have_the_gradient_of_one(kind, monkeypatch):
    config = scorer_config(**kind)
    one, *pair = (make_learner(config) for _ in range(3))
    for learner in (one, *pair):
        away_from_zero(learner)
    units = units_of("pairwise")
    whole = scorer_gradients(one, units)
    # The second Learner has one unit, and in the other run none.
    for shards in ([units[1:], units[:1]], [units, []]):
        taken = {}

        def call(learner, shard, taken=taken):
            taken[id(learner)] = scorer_gradients(learner, shard)

        call_side_by_side(pair, shards, call, monkeypatch)
        for found in taken.values():
            assert_close(found, whole, atol=5e-6)
        assert len(taken) == 2


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
def test_scores_of_turns(kind):
    learner = make_learner(scorer_config(training={"micro_batch_tokens": 48}, **kind))
    away_from_zero(learner)
    played = whole_episodes()
    found = learner.score_turns(played)
    for episode, scores in zip(played, found, strict=True):
        expected = slow_turn_scores(learner, episode).detach()
        torch.testing.assert_close(torch.tensor(scores), expected, atol=1e-4, rtol=1e-4)


def test_an_implicit_scorer_begins_as_the_policy():
    learner = make_learner(scorer_config(**LOG_RATIO))
    theirs = dict(policy(learner).lm.named_parameters())
    own = dict(module_of(learner).lm.named_parameters())
    assert all(torch.equal(theirs[n], p) for n, p in own.items())
    assert all(theirs[n] is not p for n, p in own.items())


def test_updates_of_policy_and_scorer_leave_each_other_alone():
    learner = make_learner(scorer_config(training={"weight_decay": 0.1}, lr=1e-2))
    scorer = {n: p.clone() for n, p in module_of(learner).named_parameters()}
    episodes = [fake_episode(i) for i in range(4)]
    for number, episode in enumerate(episodes):
        episode_data(episode).advantage = (-1.0) ** number
    before = weights(learner)
    update(learner, episodes)
    trained = weights(learner)
    assert any(not torch.equal(before[n], trained[n]) for n in before)
    own = dict(module_of(learner).named_parameters())
    assert all(torch.equal(scorer[n], p) for n, p in own.items())
    learner.update_scorer(units_of("pairwise"), 0)
    assert all(torch.equal(trained[n], p) for n, p in weights(learner).items())
    assert any(not torch.equal(scorer[n], p) for n, p in own.items())


def test_the_critics_warm_up_does_not_hold_up_the_scorer():
    config = scorer_config(LLMPPOConfig, training={"critic_warmup_iters": 5})
    learner = make_learner(config)
    before = {n: p.clone() for n, p in module_of(learner).named_parameters()}
    learner.update_scorer(units_of("pairwise"), 0)
    after = dict(module_of(learner).named_parameters())
    assert any(not torch.equal(before[n], p) for n, p in after.items())


def test_updates_order_the_pairs():
    learner = make_learner(scorer_config(lr=3e-3))
    units = units_of("pairwise")
    metrics = [learner.update_scorer(units, i) for i in range(12)]
    assert metrics[0]["score_loss"] == pytest.approx(np.log(2))
    assert metrics[0]["pair_accuracy"] == 0.5
    assert metrics[-1]["pair_accuracy"] == 1.0


def test_an_implicit_scorer_prefers_what_its_pairs_prefer():
    """iStar's scorer: the turns of successes get higher scores than of failures."""
    learner = make_learner(scorer_config(lr=3e-3, **LOG_RATIO))
    played = whole_episodes()
    units = units_of("pairwise", played)
    for i in range(12):
        learner.update_scorer(units, i)
    means = [np.mean(s) for s in learner.score_turns(played)]
    for start in (0, 4):
        returns = [sum(e.get_rewards()) for e in played[start : start + 4]]
        best, worst = int(np.argmax(returns)), int(np.argmin(returns))
        assert means[start + best] > means[start + worst]


def test_progress_sums_to_the_return():
    """SPA-RL's scorer: the turns' scores of an episode sum to its return."""
    learner = make_learner(scorer_config(loss="return", pool="sum", lr=3e-3))
    played = whole_episodes()
    returns = np.array([sum(e.get_rewards()) for e in played])
    before = np.array([sum(s) for s in learner.score_turns(played)])
    for i in range(60):
        learner.update_scorer(played, i)
    after = np.array([sum(s) for s in learner.score_turns(played)])
    error = np.mean((after - returns) ** 2)
    assert error < 0.05 * np.mean((before - returns) ** 2)


def test_a_discriminator_knows_the_experts_turns():
    """StepAgent's scorer: turns of the expert score above the policy's own."""
    learner = make_learner(scorer_config(loss="expert", lr=3e-3))
    played = whole_episodes()
    for i in range(30):
        metrics = learner.update_scorer(played, i)
    assert metrics["outcome_accuracy"] > 0.95
    scores = learner.score_turns(played)
    experts = [s for e, s in zip(played, scores) if episode_data(e).success]
    own = [s for e, s in zip(played, scores) if not episode_data(e).success]
    assert min(map(min, experts)) > max(map(max, own))


def test_env_runners_get_no_scorer():
    config = scorer_config()
    ids = [
        set(
            config.get_multi_rl_module_spec(
                spaces=SPACES, inference_only=only
            ).rl_module_specs
        )
        for only in (False, True)
    ]
    assert SCORER_MODULE in ids[0] and SCORER_MODULE not in ids[1]
    assert SCORER_MODULE not in config.sampled_module_ids


# Driver -------------------------------------------------------------------------------


def sampled(count=8):
    return SampledEpisodes(
        fake_episode(i, turns=1 + i % 3, reward=float(i % 4), group=i // 4)
        for i in range(count)
    )


def test_scores_are_those_before_the_update_and_rewards_read_them():
    config = scorer_config(lr=1e-2)
    learner = make_learner(config)
    away_from_zero(learner)
    algo, episodes = driver_of(config, learner), sampled()
    own = [WholeEpisode(e, SCORER_MODULE) for e in episodes]
    expected = [s[-1] for s in learner.score_turns(own)]
    algo.before_rewards(episodes)
    true = [e.get_rewards()[-1] for e in episodes]
    DriverComponents(config).assign_rewards(episodes, 0)
    assert [sum(t.rewards) for t in episodes.trajectories] == pytest.approx(expected)
    # The scorer learns from the environment's rewards, which the scores replaced.
    pairs = algo._units(algo._to_learn)
    chosen = [sum(p.agent_episodes["chosen"].get_rewards()) for p in pairs]
    rejected = [sum(p.agent_episodes["rejected"].get_rewards()) for p in pairs]
    assert (chosen, rejected) == ([3.0, 2.0] * 2, [0.0, 1.0] * 2)
    assert set(true) == {0.0, 1.0, 2.0, 3.0}
    algo._update_scorer()
    assert algo._to_learn == []
    assert [s[-1] for s in learner.score_turns(own)] != pytest.approx(expected)


def test_scores_of_several_learners_return_in_order():
    config = scorer_config(pool="sum")
    algo = driver_of(config)

    class Two(Alone):
        def __len__(self):
            return 2

        def foreach_shard(self, method, shards):
            assert [len(s) for s in shards] == [4, 3]
            return [[[float(e.id_)] for e in shard] for shard in shards]

    algo.learner_group = Two(learner=None)
    numbered = whole_episodes(7)
    for number, episode in enumerate(numbered):
        episode.id_ = str(number)
    assert algo.score_turns(numbered) == [[float(i)] for i in range(7)]


def test_shards_hold_every_unit_once():
    algo = driver_of(scorer_config())
    algo.learner_group.__class__.__len__ = lambda self: 2
    try:
        pairs = units_of("pairwise")
        shards = algo._shards(pairs)
        assert sorted(p.id_ for s in shards for p in s) == sorted(p.id_ for p in pairs)
        assert [len(s) for s in algo._shards(pairs[:1])] == [1, 0]
        whole = LLMTrainingData(episodes=pairs).shard(2)
        assert [len(s) for s in shards] == [len(d.episodes) for d, _ in whole]
    finally:
        algo.learner_group.__class__.__len__ = lambda self: 0


def test_the_score_of_a_turn_is_its_share_of_the_conversations():
    config = scorer_config()
    learner = make_learner(config)
    away_from_zero(learner)
    played = whole_episodes()
    shares = driver_of(config, learner).score_turns(played)
    whole = [s[-1] for s in learner.score_turns(played)]
    assert [sum(s) for s in shares] == pytest.approx(whole, abs=1e-6)
    assert [len(s) for s in shares] == [len(e) for e in played]


def test_the_expert_plays_the_tasks_of_the_policy():
    config = scorer_config(loss="expert")
    algo = driver_of(config)
    played = whole_episodes()
    units = algo._units(played)
    labels = [episode_data(u).success for u in units]
    assert labels == [False] * 8 + [True] * 2
    seeds = [episode_data(u).task.seed for u in units[8:]]
    assert seeds == [0, 1]
    assert all(u.module_id == SCORER_MODULE for u in units)
    own, expert = (sum(map(len, part)) for part in (units[:8], units[8:]))
    assert algo._prior_logit(units) == pytest.approx(math.log(expert / own))
    assert driver_of(scorer_config())._prior_logit(units) == 0


def test_the_policy_waits_for_the_scorer():
    algo = driver_of(scorer_config(warmup_iters=2))
    waits = []
    for iteration in range(4):
        algo._iteration = iteration
        waits.append(algo.policy_waits)
    assert waits == [True, True, False, False]


def test_a_scorer_is_trained_for_its_iterations_alone():
    config = scorer_config(iters=2)
    algo, calls = driver_of(config), []
    algo.learner_group.foreach_shard = lambda *a, **k: calls.append(k) or [{}]
    for iteration in range(4):
        algo._iteration = iteration
        algo._to_learn = whole_episodes()
        algo._update_scorer()
        assert algo._to_learn == []
    assert calls == [{"iteration": i, "prior_logit": 0.0} for i in (0, 1)]


# Reading ------------------------------------------------------------------------------


def test_rewards_of_scores():
    first, second = example_table(("a",)).trajectories[:2]
    assert scorer_reward(first) == pytest.approx(sum(first.scores))
    assert scorer_reward(second, per="turn").tolist() == second.scores
    assert scorer_reward(second, per="turn", clip=0.1).tolist() == [0.1, 0.0]
    first.scores = None
    with pytest.raises(MissingScores, match="Set scorer.loss"):
        scorer_reward(first)


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_advantages_of_scores_against_a_loop(discount):
    table = example_table(("a",), rollouts=3)
    rng = np.random.default_rng(0)
    for trajectory in table.trajectories:
        trajectory.scores = rng.normal(size=len(trajectory)).tolist()
    found = table.split(scorer_advantage(table, discount=discount))
    for number, trajectory in enumerate(table.trajectories):
        group = [
            (i, h, s)
            for i, other in enumerate(table.trajectories)
            if other.task.group_id == trajectory.task.group_id
            for h, s in enumerate(other.scores)
        ]
        own = []
        for turn, score in enumerate(trajectory.scores):
            others = [s for i, h, s in group if (i, h) != (number, turn)]
            own.append(score - sum(others) / len(others))
        for turn in range(len(own)):
            later = sum(discount**k * a for k, a in enumerate(own[turn:]))
            assert found[number][turn] == pytest.approx(later, rel=1e-12)


# Configuration ------------------------------------------------------------------------

REFUSED = [
    ({"loss": None}, {}, "scorer.loss is not set"),
    ({}, {"rewards": []}, "trains a scorer that nothing reads"),
    ({}, {"group_size": 1}, "a pair needs two episodes"),
    ({"loss": "outcome", "match": "all"}, {}, "compares nothing"),
    ({"loss": "return", "label_noise": 0.1}, {}, "it is for scorer.loss"),
    ({"beta": 0.1}, {}, "it is for scorer.scores='log_ratio'"),
    ({"scores": "log_ratio"}, {}, "pool='sum' or 'mean'"),
    (
        {"loss": "return", "scores": "log_ratio", "pool": "sum"},
        {},
        "log-ratios of turns",
    ),
    ({"loss": "expert", "pool": "sum"}, {}, "scores single turns"),
    ({"loss": "hinge"}, {}, "hinge"),
    ({"lr": 0.0}, {}, "lr"),
]


@pytest.mark.parametrize("given, rollouts, message", REFUSED, ids=str)
def test_refusals(given, rollouts, message):
    with pytest.raises(ConfigError, match=message):
        config = scorer_config(**given)
        config.rollouts(**rollouts).validate()


def test_a_reward_inside_another_reads_the_scorer():
    gate = {"name": "gate", "levels": [{"when": "scorer", "reward": 1.0}]}
    scorer_config().rollouts(rewards=[gate]).validate()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.language_model(history="latest"), "history='latest'"),
        (lambda c: c.generation(head="score"), "head='score'"),
        (
            lambda c: c.training(
                advantage_estimator=[
                    {"name": "group", "baseline": "greedy", "scale": "none"}
                ]
            ),
            "greedy rollouts get no",
        ),
        (lambda c: c.env_runners(num_env_runners=1, sample_ahead=1), "with a scorer"),
        (
            lambda c: c.learners(sharding="fsdp2", num_learners=2),
            "shards",
        ),
        (lambda c: c.environment("secret_sum-v0"), "of one agent"),
    ],
)
def test_runs_that_a_scorer_does_not_support(change, message):
    with pytest.raises(ConfigError, match=message):
        config = scorer_config()
        change(config)
        config.validate()


@pytest.mark.parametrize("name", ["scorer", "scored_turns"])
def test_a_filter_reads_a_scorer(name):
    config = scorer_config(loss=None).rollouts(rewards=[], filters=[name])
    with pytest.raises(ConfigError, match=r"scorer\.loss is not set"):
        config.copy().validate()
    config.scorer(loss="outcome").validate()
    with pytest.raises(ConfigError, match="reads scores, but scorer.loss='td'"):
        config.copy().scorer(loss="td").validate()


def test_marft_refuses_a_scorer():
    config = MARFTConfig().environment("secret_sum-v0")
    with pytest.raises(ConfigError, match="of one agent|nothing reads"):
        config.scorer(loss="outcome").validate()


def test_without_a_scorer_its_settings_are_refused():
    config = GRPOConfig().environment("guess_number-v0").scorer(lr=1e-3)
    with pytest.raises(ConfigError, match="there is no scorer"):
        config.validate()
