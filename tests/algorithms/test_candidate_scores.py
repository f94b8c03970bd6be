"""Scores of candidates, pairs by their rank, and the best of them in files."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from learner_helpers import fake_episode, gradients, make_config, make_learner
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from scorer_helpers import LOG_RATIO, away_from_zero, driver_of, scorer_config

from rllib_llm import GRPOConfig, LLMPPOConfig, PrefConfig, SFTConfig
from rllib_llm.algorithms.driver.candidates import ScoresCandidates
from rllib_llm.algorithms.driver.saved_episodes import SavesEpisodes
from rllib_llm.algorithms.pref.pairs import candidate_pairs_of_episodes
from rllib_llm.data import columns
from rllib_llm.data.candidates import best_candidates, candidate_episodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Candidate
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row

READ = {"candidates": 3, "candidate_scores": "logp"}


def with_candidates(seed=0, turns=2, count=2, group=0):
    """Return an episode with other replies at each turn, of known log-probability."""
    episode = fake_episode(seed, turns=turns, group=group)
    data = episode_data(episode)
    for number in range(turns):
        turn = episode.get_extra_model_outputs(columns.TURN)[number]
        data.messages += [
            {"role": "user", "content": f"state {number}"},
            {"role": "assistant", "content": "x"},
        ]
        others = [fake_episode(100 + seed + i, turns=1) for i in range(count)]
        data.candidates[number] = [
            Candidate(_like(turn, other), f"reply {i}", f"reply {i}")
            for i, other in enumerate(others)
        ]
    return episode


def _like(turn, other):
    (record,) = other.get_extra_model_outputs(columns.TURN)
    record.prompt_ids = turn.prompt_ids
    return record


class _Driver(ScoresCandidates):
    def __init__(self, config, unreadable=()):
        self.config, self.metrics, self._unreadable = (
            config,
            MetricsLogger(),
            unreadable,
        )
        self.iteration = 0
        ScoresCandidates.setup(self, config)

    iteration = 0

    def ask_about_candidates(self, replies):
        return set(self._unreadable)


class _Base:
    def setup(self, config):
        pass


class Driver(_Driver, _Base):
    pass


def test_scores_are_those_of_the_reward_components_at_the_last_reply():
    config = SimpleNamespace(
        candidates=3, candidate_scores=[{"name": "logp", "weight": 2.0}]
    )
    episodes = [with_candidates(seed) for seed in range(3)]
    driver = Driver(config)
    driver.score_candidates(SampledEpisodes(episodes))
    for episode in episodes:
        for turn, scores in episode_data(episode).candidate_scores.items():
            replies = candidate_episodes(episode, turn)
            means = [
                reply.get_extra_model_outputs(columns.TURN)[-1].action_logps.mean()
                for reply in replies
            ]
            assert scores == pytest.approx([2.0 * mean for mean in means])
    assert driver.metrics.peek(("candidates", "num_places")) == 6
    gains = [
        max(s) - np.mean(s)
        for e in episodes
        for s in episode_data(e).candidate_scores.values()
    ]
    mean = driver.metrics.peek(("candidates", "best_gain_mean"))
    assert mean == pytest.approx(np.mean(gains))


def test_a_place_with_an_unreadable_answer_has_no_scores():
    config = SimpleNamespace(candidates=3, candidate_scores="logp")
    episodes = [with_candidates(seed) for seed in range(2)]
    Driver(config, unreadable={4}).score_candidates(SampledEpisodes(episodes))
    scored = [sorted(episode_data(e).candidate_scores) for e in episodes]
    assert scored == [[0], [0, 1]]


def test_a_scorer_scores_candidates_as_it_would_if_they_had_been_played():
    config = scorer_config(**LOG_RATIO)
    config.rollouts(**READ, save_episodes="unused", save_as="best_candidates")
    config.rollouts(candidate_scores="scorer")
    learner = make_learner(config)
    away_from_zero(learner)
    driver = driver_of(config, learner)
    episode = with_candidates()
    replies = candidate_episodes(episode, 1)
    sampled = SampledEpisodes(replies)
    driver.before_candidate_scores(sampled)
    own = [trajectory.turn_scores[-1] for trajectory in sampled.trajectories]
    assert len(set(own)) == 3
    # The played reply: as in the whole episode, whose later turns it does not see.
    from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode

    (whole,) = driver.score_turns([WholeEpisode(episode, "scorer")])
    assert own[-1] == pytest.approx(whole[1], abs=1e-5)


# What reads the scores ----------------------------------------------------------------


def scored(values, **fields):
    episode = with_candidates(**fields)
    episode_data(episode).candidate_scores = dict(enumerate(values))
    return episode


def sides(pair):
    return {
        name: side.get_extra_model_outputs(columns.TURN)[-1]
        for name, side in pair.agent_episodes.items()
    }


def test_pairs_by_rank_compare_the_reply_alone():
    episode = scored([[3.0, 1.0, 2.0, 0.5], [0.0, 0.0, 0.0, 0.0]], count=3)
    pairs = candidate_pairs_of_episodes([episode])
    replies = [
        c.get_extra_model_outputs(columns.TURN)[-1]
        for c in candidate_episodes(episode, 0)
    ]
    compared = [sides(pair) for pair in pairs]
    assert [p["chosen"] is replies[0] for p in compared] == [True, False]
    assert compared[0]["rejected"] is replies[3]
    assert (compared[1]["chosen"], compared[1]["rejected"]) == (replies[2], replies[1])
    late = scored([[0.0] * 3, [2.0, 0.0, 1.0]])
    (pair,) = candidate_pairs_of_episodes([late])
    for side in pair.agent_episodes.values():
        assert episode_data(side).masked_turns == frozenset({0})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 3), ({"margin": 1.5}, 1), ({"max_pairs_per_task": 1}, 2)],
)
def test_margins_and_limits(settings, expected):
    episodes = [
        scored([[3.0, 0.0, 1.0], [1.0, 0.5, 0.0]], seed=1),
        scored([[1.0, 0.0, 0.5]], seed=2, turns=1, group=1),
    ]
    assert len(candidate_pairs_of_episodes(episodes, **settings)) == expected


def test_only_the_reply_has_a_gradient():
    learner = make_learner(make_config(PrefConfig))
    episode = scored([[0.0] * 3, [2.0, 0.0, 1.0]])
    pairs = candidate_pairs_of_episodes([episode])
    chosen = pairs[0].agent_episodes["chosen"]
    before = gradients(learner, pairs)
    # A shared turn adds the same to both sides: masked or not, it has no gradient of
    # its own, but its tokens would count in the means that metrics report.
    assert episode_data(chosen).masked_turns == frozenset({0})
    assert sum(float(g.abs().sum()) for g in before.values()) > 0


def test_the_best_reply_of_each_place_is_saved_after_untrained_turns(tmp_path):
    config = make_config(LLMPPOConfig).rollouts(
        **READ, save_episodes=str(tmp_path), save_as="best_candidates"
    )
    config.validate()

    class Saver(SavesEpisodes, _Base):
        iteration = 0

    saver = Saver()
    saver.config, saver.metrics, saver.logdir = config, MetricsLogger(), None
    saver.setup(config)
    episodes = [
        scored([[0.0, 2.0, 1.0], [1.0, 1.0, 3.0]], seed=1),
        scored([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]], seed=2),  # a place without a best
    ]
    saver.save_episodes(SampledEpisodes(episodes))
    (file,) = tmp_path.glob("*.jsonl")
    rows = [parse_row(line) for line in file.read_bytes().splitlines()]
    found = [
        [(turn.completion, turn.train) for turn in row.agents[0].turns] for row in rows
    ]
    assert found == [
        [("reply 1", True)],
        [("x", False), ("x", True)],  # the played one was the best
        [("x", False), ("reply 0", True)],
    ]
    (best, _) = best_candidates(episodes[0])
    ids = best.get_extra_model_outputs(columns.TURN)[0].action_ids.tolist()
    assert (
        json.loads(file.read_text().splitlines()[0])["agents"][0]["turns"][0][
            "action_ids"
        ]
        == ids
    )


# Settings -----------------------------------------------------------------------------


def config_with(config_class=GRPOConfig, env="guess_number-v0", training=None, **given):
    config = config_class().environment(env).rollouts(**given)
    return config.training(**(training or {}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"candidates": 4, "candidate_scores": "logp"}, "nothing reads"),
        ({"candidate_scores": "logp"}, "no effect: each turn has one reply"),
        ({"save_as": "best_candidates", "save_episodes": "x"}, "rollouts.candidates=1"),
        ({"save_as": "best_candidates"}, "nothing is saved"),
    ],
)
def test_settings_that_do_not_fit_together(given, expected):
    with pytest.raises(ConfigError, match=expected):
        config_with(**given).validate()


BEST = {"save_episodes": "x", "save_as": "best_candidates", "candidates": 2}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "needs rollouts.candidate_scores"),
        ({"candidate_scores": ["environment", "logp"]}, "has received none"),
        ({"candidate_scores": "scorer"}, "scorer.loss is not set"),
        ({"candidate_scores": {"name": "asked", "of": "judge"}}, "judge"),
        ({"candidate_scores": "logp", "env": "team-v0"}, "Use one agent"),
    ],
)
def test_scores_and_environments_that_do_not_fit(given, expected):
    with pytest.raises(ConfigError, match=expected):
        config_with(**BEST, **given).validate()


def test_algorithms_that_sample_nothing_refuse_candidates():
    given = {"candidates": 2, "candidate_scores": "logp"}
    with pytest.raises(ConfigError):
        config_with(SFTConfig, **given).validate()
    pairs = config_with(PrefConfig, training={"match": "candidates"})
    with pytest.raises(ConfigError, match="rollouts.candidates=1"):
        pairs.validate()
    forked = config_with(PrefConfig, training={"match": "candidates"}, **given)
    with pytest.raises(ConfigError, match="after_fork"):
        forked.training(after_fork=True).validate()


def test_values_of_places_cannot_rank_replies():
    config = config_with(**BEST, candidate_scores="scorer").training(
        advantage_estimator="turn_critic", drop_zero_variance_groups=False
    )
    config.scorer(loss="td").validate()
    with pytest.raises(ConfigError, match="values places and not the replies"):
        config.scorer(loss="monte_carlo").validate()
