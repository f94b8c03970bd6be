"""Presets of preferences: what each compares of sampled episodes, and with what."""

from __future__ import annotations

import pytest
from learner_helpers import fake_episode
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm.algorithms.pref.pairs import LabelledEpisode, PreferencePair
from rllib_llm.algorithms.pref.pref import Pref
from rllib_llm.data.episode_data import agent_episodes, episode_data, task_of
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.recipes import load_recipe

# Returns by task: mixed ones, all failed, and all solved.
RETURNS = {0: [1.0, 0.0, 0.0, 0.75], 1: [0.0] * 4, 2: [1.0] * 4}


def config_of(name):
    return load_recipe(name).stages[-1].build_config()


def sampled():
    found = []
    for task, returns in RETURNS.items():
        for number, value in enumerate(returns):
            episode = fake_episode(10 * task + number, reward=value, group=task)
            episode_data(episode).success = value > 0.5
            found.append(episode)
    return SampledEpisodes(found)


def compared(name):
    """Return what the preset compares of these episodes."""
    algo = Pref.__new__(Pref)
    algo.config, algo.metrics, algo._stored = config_of(name), MetricsLogger(), None
    algo.sample_groups = lambda groups: sampled()
    algo.process_episodes = lambda episodes: episodes
    return algo.collect()


def sides(unit):
    """Return task and rollout of each episode in a unit, the chosen one first."""
    return [
        (task_of(e).group_id, task_of(e).rollout % 10) for e in agent_episodes(unit)
    ]


@pytest.mark.parametrize("name", ["m_dpo", "frozen_lake_dpo", "frozen_lake_dmpo"])
def test_solved_and_failed_episodes_of_a_map_are_compared(name):
    units = compared(name)
    assert all(isinstance(unit, PreferencePair) for unit in units)
    # The best with the worst, the second best with the second worst; groups whose
    # episodes are alike compare nothing.
    assert [sides(unit) for unit in units] == [[(0, 0), (0, 1)], [(0, 3), (0, 2)]]


def test_paprika_compares_the_best_with_the_worst_and_imitates_it():
    assert [sides(unit) for unit in compared("paprika")] == [[(0, 0), (0, 1)]]
    config = config_of("paprika")
    assert config.nll_weight == 1.0
    assert config.curriculum["name"] == "bandit"


@pytest.mark.parametrize("name", ["m_kto", "frozen_lake_kto"])
def test_every_episode_is_desirable_or_not(name):
    units = compared(name)
    assert all(isinstance(unit, LabelledEpisode) for unit in units)
    labels = [
        episode_data(unit.agent_episodes["episode"]).agent_index for unit in units
    ]
    solved = [value > 0.5 for returns in RETURNS.values() for value in returns]
    desirable = labels[0]
    assert [label == desirable for label in labels] == solved
    assert len(units) == len(solved)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("m_dpo", "current"),
        ("m_kto", "current"),
        ("frozen_lake_dpo", "initial"),
        ("frozen_lake_kto", "initial"),
        ("eto", "initial"),
    ],
)
def test_m_dpo_and_m_kto_compare_with_the_policy_of_the_iteration(name, reference):
    config = config_of(name)
    assert config.reference == reference
    kind = "kto" if "kto" in name else "dpo"
    assert config.preference_loss["name"] == kind


def test_dmpo_discounts_later_turns():
    dmpo, dpo = config_of("frozen_lake_dmpo"), config_of("frozen_lake_dpo")
    assert 0 < dmpo.turn_discount < 1 == dpo.turn_discount
    assert dmpo.nll_weight > 0 == dpo.nll_weight
