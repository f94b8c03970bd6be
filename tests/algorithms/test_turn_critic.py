"""Turn critics: gradient, advantages, target network, replay, configuration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    make_config,
    make_learner,
    update,
    weights,
)
from scorer_helpers import (
    TURN_CRITIC,
    away_from_zero,
    driver_of,
    module_of,
    scorer_config,
    scorer_gradients,
    whole_episodes,
)
from side_by_side import call_side_by_side

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data import columns
from rllib_llm.data.episode_data import REPLAY, episode_data
from rllib_llm.data.episode_records import episode_record, recorded_episode
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.errors import ConfigError
from rllib_llm.modules.scorer import SCORER_MODULE

KINDS = [
    {"loss": "td"},
    {"loss": "td", "gamma": 0.5, "expectile": 0.9, "twin": False},
    {"loss": "monte_carlo"},
]


def played(breaks=True):
    """Whole episodes, one of which has a second row."""
    broken = WholeEpisode(
        fake_episode(9, turns=3, reward=2.0, group=3, breaks=breaks),
        SCORER_MODULE,
        success=True,
    )
    return [*whole_episodes(5), broken]


def slow_values(module, episode, target=False):
    """Return Q [C, H] and V [H] by the plain model, each turn's context alone."""
    trunk = module.target_trunk if target else module.lm.base_model
    of_place = module.target_value_head if target else module.value_head
    heads = ()
    if hasattr(module, "q_heads"):
        heads = module.target_q_heads if target else module.q_heads
    q, v, ids = [], [], []
    for turn in episode.get_extra_model_outputs(columns.TURN):
        ids = [*(ids if turn.extends else []), *turn.prompt_ids.tolist()]
        v.append(of_place(trunk(torch.tensor([ids])).last_hidden_state[0, -1]))
        ids += turn.action_ids.tolist()
        last = trunk(torch.tensor([ids])).last_hidden_state[0, -1]
        q.append([head(last) for head in heads])
    return q, v


def slow_loss(learner, episodes):
    """Return the mean loss over turns, by loops."""
    module, config, losses = module_of(learner), learner.config, []
    for episode in episodes:
        rewards = list(episode.get_rewards())
        q, v = slow_values(module, episode)
        if config.scorer_loss == "monte_carlo":
            sign = 1.0 if episode_data(episode).success else -1.0
            losses += [torch.log1p(torch.exp(-sign * value)) for value in v]
            continue
        target_q, target_v = slow_values(module, episode, target=True)
        for h in range(len(v)):
            later = target_v[h + 1].detach() if h + 1 < len(v) else 0.0
            aim = rewards[h] + config.scorer_gamma * later
            of_q = sum((each - aim) ** 2 for each in q[h]) / len(q[h])
            u = min(each.detach() for each in target_q[h]) - v[h]
            tau = config.scorer_expectile
            losses.append(of_q + (1 - tau if u < 0 else tau) * u**2)
    return torch.stack(losses).mean()


def perturbed(config):
    learner = make_learner(config)
    away_from_zero(learner)  # the target network, too, and otherwise
    return learner


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_gradient_is_that_of_the_loss(kind):
    learner = perturbed(scorer_config(training={"micro_batch_tokens": 48}, **kind))
    module = module_of(learner)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    assert not any(name.startswith("target_") for name in trained)
    expected = torch.autograd.grad(
        slow_loss(learner, played()), list(trained.values()), allow_unused=True
    )
    found = scorer_gradients(learner, played())  # then the target network moves
    reached = {n: g for n, g in zip(trained, expected, strict=True) if g is not None}
    assert max(float(g.abs().max()) for g in reached.values()) > 1e-3
    assert reached.keys() == found.keys()
    for name, grad in reached.items():
        torch.testing.assert_close(found[name], grad, atol=2e-5, rtol=1e-3)


def test_packed_rows_have_the_same_gradient():
    taken = []
    for training in ({}, {"packing": True, "micro_batch_tokens": 64}):
        learner = perturbed(scorer_config(training=training, loss="td"))
        taken.append(scorer_gradients(learner, played()))
    assert_close(*taken, atol=5e-6)


@pytest.mark.parametrize("kind", KINDS[::2], ids=str)
def test_two_learners_have_the_gradient_of_one(kind, monkeypatch):
    config = scorer_config(**kind)
    whole = scorer_gradients(perturbed(config), played())
    for shards in ([played()[1:], played()[:1]], [played(), []]):
        taken, pair = {}, [perturbed(config) for _ in range(2)]

        def call(learner, shard, taken=taken):
            taken[id(learner)] = scorer_gradients(learner, shard)

        call_side_by_side(pair, shards, call, monkeypatch)
        assert len(taken) == 2
        for found in taken.values():
            assert_close(found, whole, atol=5e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_advantages_of_turns(kind):
    learner = perturbed(scorer_config(training={"micro_batch_tokens": 48}, **kind))
    found = learner.score_turns(played())
    for episode, advantages in zip(played(), found, strict=True):
        with torch.no_grad():
            q, v = slow_values(module_of(learner), episode)
        for h, advantage in enumerate(advantages):
            if kind["loss"] == "td":
                expected = min(map(float, q[h])) - float(v[h])
            else:
                chance = [float(torch.sigmoid(value)) for value in v] + [0.0]
                expected = episode.get_rewards()[h] + chance[h + 1] - chance[h]
            assert advantage == pytest.approx(expected, abs=1e-4)


# V-trace ------------------------------------------------------------------------------


def nearly_on_policy(learner, count=5):
    """Episodes whose recorded log-probabilities differ a little from now, and whole."""
    rng, both = np.random.default_rng(0), []
    for number in range(count):
        episode = fake_episode(
            number, turns=1 + number % 3, reward=1.0 + number, breaks=number == 2
        )
        (logps,) = learner.text_logps([episode])
        for turn in episode.get_extra_model_outputs(columns.TURN):
            size = len(turn.action_ids)
            turn.action_logps = logps[:size] + rng.normal(0.0, 0.2, size)
            logps = logps[size:]
        both.append((episode, WholeEpisode(episode, SCORER_MODULE)))
    return both


def slow_vtrace(learner, episode):
    """Return values, targets and advantages of an episode's turns."""
    config, turns = learner.config, episode.get_extra_model_outputs(columns.TURN)
    _, v = slow_values(module_of(learner), episode)
    (now,) = learner.text_logps([episode])
    ratios, start = [], 0
    for turn in turns:
        size = len(turn.action_ids)
        gap = now[start : start + size].sum() - np.sum(turn.action_logps)
        ratios.append(float(np.exp(gap)))
        start += size
    rewards, plain = list(episode.get_rewards()), [*(float(x.detach()) for x in v), 0.0]
    targets, after, correction = [0.0] * len(v), 0.0, 0.0
    advantages = [0.0] * len(v)
    for h in reversed(range(len(v))):
        rho = min(config.scorer_clip_rho_threshold, ratios[h])
        gamma = config.scorer_gamma
        delta = rho * (rewards[h] + gamma * plain[h + 1] - plain[h])
        advantages[h] = rho * (rewards[h] + gamma * after - plain[h])
        correction = delta + gamma * min(1.0, ratios[h]) * correction
        after = targets[h] = plain[h] + correction
    return v, targets, advantages


@pytest.mark.parametrize(
    "given", [{}, {"gamma": 0.5, "clip_rho_threshold": 2.0}], ids=str
)
def test_vtrace_in_the_learner(given):
    config = scorer_config(training={"micro_batch_tokens": 48}, loss="vtrace", **given)
    learner = perturbed(config)
    plain, episodes = zip(*nearly_on_policy(learner), strict=True)
    found = learner.score_turns(episodes)
    module, losses = module_of(learner), []
    for episode, advantages in zip(plain, found, strict=True):
        v, targets, expected = slow_vtrace(learner, episode)
        assert advantages == pytest.approx(expected, abs=1e-4)
        losses += [(x - t) ** 2 for x, t in zip(v, targets, strict=True)]
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(
        torch.stack(losses).mean(), list(trained.values()), allow_unused=True
    )
    taken = scorer_gradients(learner, episodes)
    reached = {n: g for n, g in zip(trained, expected, strict=True) if g is not None}
    assert max(float(g.abs().max()) for g in reached.values()) > 1e-3
    assert reached.keys() == taken.keys()
    for name, grad in reached.items():
        torch.testing.assert_close(taken[name], grad, atol=2e-5, rtol=1e-3)


def test_replayed_turns_are_judged_by_the_current_policy(monkeypatch):
    from rllib_llm.algorithms.driver.replay import ReplaysEpisodes

    monkeypatch.setattr(ReplaysEpisodes, "with_stored", Stores.with_stored)
    config = scorer_config(loss="vtrace", training={"policy_loss": "pg"})
    algo = driver_of(config, perturbed(config))
    sampled = fake_episode(0)
    episode_data(sampled).advantage = 7.0
    _, replayed = algo.with_stored([sampled])
    (scores,) = algo.score_turns([WholeEpisode(replayed, SCORER_MODULE)])
    assert len(scores) == 3 and any(scores)
    assert list(episode_data(replayed).advantage) == pytest.approx(scores)
    assert episode_data(sampled).advantage == 7.0


@pytest.mark.parametrize(
    "replay, message",
    [
        ({"advantages": "rebased"}, "computes the advantages of replayed turns anew"),
        ({"positive_only": True}, "computes the advantages of replayed turns anew"),
        ({"loss": "cispo"}, "would weigh them once more"),
        ({"old_logps": "learner"}, "would weigh them once more"),
    ],
    ids=str,
)
def test_replay_beside_vtrace(replay, message):
    config = scorer_config(loss="vtrace", training={"policy_loss": "pg"})
    config.replay(episodes_per_iteration=8).validate()
    with pytest.raises(ConfigError, match=message):
        config.replay(**replay).validate()


# Target network -----------------------------------------------------------------------


def pairs_of(learner):
    for main, target in module_of(learner).get_target_network_pairs():
        yield from zip(main.parameters(), target.parameters(), strict=True)


@pytest.mark.parametrize("tau", [0.25, 1.0])
def test_the_target_network_follows_each_step(tau):
    learner = make_learner(scorer_config(loss="td", tau=tau, lr=1e-2))
    assert all(torch.equal(m, t) for m, t in pairs_of(learner))
    before = [t.clone() for _, t in pairs_of(learner)]
    learner.update_scorer(played(), 0)
    for old, (main, target) in zip(before, pairs_of(learner), strict=True):
        torch.testing.assert_close(target, tau * main + (1 - tau) * old)
        assert not target.requires_grad
    moved = [not torch.equal(o, t) for o, (_, t) in zip(before, pairs_of(learner))]
    assert any(moved)


def test_the_target_network_is_in_the_state():
    learner = perturbed(scorer_config(loss="td"))
    other = make_learner(scorer_config(loss="td"))
    module_of(other).set_state(module_of(learner).get_state())
    for (_, one), (_, two) in zip(pairs_of(learner), pairs_of(other), strict=True):
        assert torch.equal(one, two)
    names = module_of(learner).get_state().keys()
    assert any(name.startswith("target_trunk.") for name in names)


def test_two_estimates_do_not_stay_equal():
    learner = make_learner(scorer_config(loss="td", lr=1e-2))
    for i in range(2):
        learner.update_scorer(played(), i)
    one, other = (head.out.weight for head in module_of(learner).q_heads)
    assert not torch.equal(one, other)


def test_values_reach_the_returns():
    learner = make_learner(scorer_config(loss="td", lr=3e-3, gamma=1.0, tau=0.5))
    losses = [learner.update_scorer(played(), i)["qf_loss"] for i in range(60)]
    assert losses[-1] < 0.2 * losses[0]


def test_values_become_the_frequencies_of_success():
    """Monte Carlo: nothing tells the three successes of four from the failure."""
    learner = make_learner(scorer_config(loss="monte_carlo", lr=3e-3))
    alike = [
        WholeEpisode(fake_episode(1, turns=1, reward=0.0), SCORER_MODULE, success=s)
        for s in (True, True, True, False)
    ]
    for i in range(60):
        metrics = learner.update_scorer(alike, i)
    assert metrics["outcome_accuracy"] == pytest.approx(0.75)
    # Without a reward the advantage of the last turn is -V.
    advantages = np.ravel(learner.score_turns(alike))
    assert advantages == pytest.approx([-0.75] * 4, abs=0.03)


# Driver -------------------------------------------------------------------------------


def test_the_policys_rewards_are_scored_and_learned():
    config = scorer_config(loss="monte_carlo")
    algo = driver_of(config, perturbed(config))
    episodes = SampledEpisodes([fake_episode(0, turns=2, reward=1.0)])
    algo.before_rewards(episodes)
    assert algo._to_learn == [] and episodes.trajectories[0].scores is None
    algo._score(episodes)
    (whole,) = algo._to_learn
    own = algo.learner_group.foreach_shard("score_turns", [[whole]])[0][0]
    assert episodes.trajectories[0].scores == pytest.approx(own)
    assert algo._units(algo._to_learn) == [whole]


class Stores:
    """Joins a replayed episode to those of the iteration."""

    def with_stored(self, episodes):
        earlier = recorded_episode(episode_record(fake_episode(5, reward=3.0)))
        episode_data(earlier).source = REPLAY
        return [*episodes, earlier]


@pytest.mark.parametrize("loss, expected", [("td", 1), ("pairwise", 0)])
def test_replayed_episodes_are_learned_by_turn_critics(loss, expected, monkeypatch):
    from rllib_llm.algorithms.driver.replay import ReplaysEpisodes

    monkeypatch.setattr(ReplaysEpisodes, "with_stored", Stores.with_stored)
    config = scorer_config(loss=loss)
    algo = driver_of(config, make_learner(config))
    joined = algo.with_stored([fake_episode(0)])
    assert len(joined) == 2 and len(algo._to_learn) == expected
    if expected:
        (whole,) = algo._to_learn
        assert sum(whole.get_rewards()) == 3.0 and whole.module_id == SCORER_MODULE
        algo._update_scorer()


def test_only_turns_above_a_threshold_are_imitated():
    """DigiRL's policy loss: NLL of the turns whose advantage is large enough."""
    trained = []
    for low in (0.0, 0.04, 0.06):
        training = {"policy_loss": {"name": "nll", "above": 0.05}}
        learner = make_learner(scorer_config(training=training, loss="monte_carlo"))
        episodes = [fake_episode(i, turns=2) for i in range(4)]
        for episode in episodes:
            episode_data(episode).advantage = np.array([0.3, low])
        update(learner, episodes)
        trained.append(torch.cat([w.flatten() for w in weights(learner).values()]))
    below, still_below, above = trained
    assert torch.equal(below, still_below) and not torch.equal(below, above)


# Configuration ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, message",
    [
        ({"loss": "td", "scores": "log_ratio", "pool": "sum"}, "log_ratio"),
        ({"loss": "td", "pool": "sum"}, "scores single turns"),
        ({"loss": "td", "label_noise": 0.1}, "it is for scorer.loss"),
        ({"loss": "td", "expectile": 1.0}, "expectile"),
        ({"loss": "td", "tau": 0.0}, "tau"),
        ({"loss": "td", "gamma": 1.5}, "gamma"),
        ({"loss": "monte_carlo", "gamma": 0.5}, "it is for scorer.loss='td' and"),
        ({"loss": "td", "clip_rho_threshold": 2.0}, "it is for scorer.loss='vtrace'"),
        ({"loss": "vtrace", "expectile": 0.9}, "it is for scorer.loss='td'"),
        ({"loss": "vtrace", "clip_rho_threshold": 0.0}, "clip_rho_threshold"),
        ({"loss": "outcome", "twin": False}, "it is for scorer.loss='td'"),
    ],
    ids=str,
)
def test_refusals(given, message):
    with pytest.raises(ConfigError, match=message):
        scorer_config(**given).validate()


def test_critics_and_their_readers_belong_together():
    scorer_config(loss="td").validate()
    with pytest.raises(ConfigError, match="Use the advantage estimator 'turn_critic'"):
        scorer_config(loss="td").rollouts(rewards=["scorer"]).validate()
    with pytest.raises(ConfigError, match="Set it to 'td', 'monte_carlo' or 'vtrace'"):
        make_config(GRPOConfig).training(**TURN_CRITIC).scorer(
            loss="outcome"
        ).validate()
    with pytest.raises(ConfigError, match="Set it to 'td', 'monte_carlo' or 'vtrace'"):
        make_config(GRPOConfig).training(**TURN_CRITIC).validate()
    config = make_config(LLMPPOConfig).scorer(loss="td")
    with pytest.raises(ConfigError, match="nothing reads"):
        config.validate()


def test_turns_are_followed_by_those_of_their_episode():
    from rllib_llm.data.turn_ends import TurnEnds

    numbers = [np.array(x) for x in ([1, 0, 0, 2], [5, 9, 3, 4])]
    turns, episodes = np.array([1, 1, 0, 0]), np.array([4, 2, 2, 4])
    ends = TurnEnds(*numbers, turns, episodes, numbers[1])
    assert ends.next_turns().tolist() == [-1, -1, 1, 0]
