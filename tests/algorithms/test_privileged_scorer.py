"""Scorers that read the right answers before the conversation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from learner_helpers import fake_episode, make_config, make_learner
from scorer_helpers import LOG_RATIO, away_from_zero, driver_of, scorer_config
from setting_scorer import answered

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.scorer.hidden_answers import hidden_tokens
from rllib_llm.data import columns
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import MissingInfo
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.search_summary import _scores


def scored(config, episodes):
    learner = make_learner(config)
    away_from_zero(learner)
    sampled = SampledEpisodes(episodes)
    driver = driver_of(config, learner)
    driver._score(sampled)
    return [t.scores for t in sampled.trajectories], driver


@pytest.mark.parametrize("given", [{}, {"loss": "outcome", **LOG_RATIO}], ids=str)
def test_every_row_begins_with_the_answers(given):
    config = scorer_config(privileged=True, **given)
    ids = hidden_tokens(answered(0), config.chat_renderer())
    text = config.chat_renderer().tokenizer.decode(ids)
    assert text == "Right answer: seven\n"
    found, _ = scored(config, [answered(i, turns=3, breaks=i == 1) for i in range(3)])
    by_hand = [fake_episode(i, turns=3, breaks=i == 1) for i in range(3)]
    for episode in by_hand:
        for turn in episode.get_extra_model_outputs(columns.TURN):
            if not turn.extends or turn.env_t == 0:
                turn.prompt_ids = np.concatenate([ids, turn.prompt_ids])
    without = scorer_config(**given)
    expected, _ = scored(without, by_hand)
    plain, _ = scored(without, [answered(i, turns=3, breaks=i == 1) for i in range(3)])
    for of_turns, those, others in zip(found, expected, plain, strict=True):
        assert of_turns == pytest.approx(those, abs=1e-5)
        assert of_turns != pytest.approx(others, abs=1e-3)


def test_other_answers_are_other_scores_and_the_policy_sees_none():
    config = scorer_config(privileged=True)
    one, other = answered(0), answered(0, answers=["nine", "9"])
    before = [
        dataclasses.astuple(turn)
        for turn in other.get_extra_model_outputs(columns.TURN)
    ]
    scores, driver = scored(config, [one, other])
    assert scores[0] != pytest.approx(scores[1], abs=1e-4)
    after = [
        dataclasses.astuple(turn)
        for turn in other.get_extra_model_outputs(columns.TURN)
    ]
    for turn, same in zip(before, after, strict=True):
        for value, again in zip(turn, same, strict=True):
            np.testing.assert_array_equal(value, again)
    # It learns from the same rows as it scores.
    lengths = [
        len(each.get_extra_model_outputs(columns.TURN)[0].prompt_ids)
        for each in driver._to_learn
    ]
    plain = len(one.get_extra_model_outputs(columns.TURN)[0].prompt_ids)
    assert lengths[1] > lengths[0] > plain


def test_an_environment_without_answers_is_named():
    config = scorer_config(privileged=True)
    with pytest.raises(MissingInfo, match="no info\\['gold_answers'\\]"):
        hidden_tokens(fake_episode(0), config.chat_renderer())


@pytest.mark.parametrize("loss", ["td", "monte_carlo", "vtrace"])
def test_turn_critics_refuse_it(loss):
    with pytest.raises(ConfigError, match="also reads episodes without"):
        scorer_config(loss=loss, privileged=True).validate()


def test_it_is_refused_without_a_scorer():
    with pytest.raises(ConfigError, match="would have no effect"):
        make_config(GRPOConfig).scorer(privileged=True).validate()


def test_evaluation_does_not_use_it():
    names = []
    for privileged in (False, True):
        config = scorer_config(privileged=privileged)
        driver = driver_of(config, make_learner(config))
        names.append(set(_scores(driver)))
    assert names[0] - names[1] == {"scorer"}
