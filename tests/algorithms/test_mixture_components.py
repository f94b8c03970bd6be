"""Filters and curricula of a mixture's environments touch their own episodes alone."""

from __future__ import annotations

import numpy as np
import pytest
from team_helpers import Run, team_config

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.sampled_episodes import SampledEpisodes

GUESS, LAKE = "guess_number-v0", "frozen_lake-v0"
LEVELS = {
    "name": "threshold",
    "levels": [{"size": 3}, {"size": 4}],
    "threshold": 1.0,
    "window": 4,
}
SEEN = []


def odd_rollouts(table):
    SEEN.append({t.task.environment for t in table.trajectories})
    return np.array([t.task.rollout % 2 == 1 for t in table.trajectories])


def sampled(*members):
    """Return the components of a mixture, its tasks and episodes of them."""
    config = team_config(
        "mixture",
        GRPOConfig,
        env_config={"environments": list(members)},
        policies=None,
        rollouts={"episodes_per_iteration": 12, "group_size": 2},
    )
    run = Run(config, learner=False)
    components = DriverComponents(config)
    tasks = components.assign(config.build_task_source().next_groups(6), 0)
    episodes = SampledEpisodes(run.runner.sample(tasks=tasks))
    run.runner.stop()
    return components, tasks, episodes


def environments(episodes):
    return [t.task.environment for t in episodes.trajectories]


@pytest.mark.parametrize("effect", ["drop", "mask"])
def test_a_filter_of_one_environment_sees_and_removes_its_own_episodes(effect):
    filters = [{"name": odd_rollouts, "effect": effect}]
    lake = {"env": LAKE, "env_config": {"max_turns": 8}}
    components, _, episodes = sampled({"env": GUESS, "filters": filters}, lake)
    before = environments(episodes)
    assert before.count(GUESS) == before.count(LAKE) == 6
    SEEN.clear()  # of example turns, on which the settings were tried
    remaining, shares = components.select(episodes)
    assert [{GUESS}] == SEEN and shares == {(GUESS, "odd_rollouts"): 0.5}
    trained = [
        (t.task.environment, t.task.rollout)
        for t in remaining.trajectories
        if t.is_trained
    ]
    assert sorted(trained) == [(LAKE, n) for n in (0, 0, 0, 1, 1, 1)] + [(GUESS, 1)] * 3
    assert len(remaining.trajectories) == (9 if effect == "drop" else 12)


def test_a_curriculum_of_one_environment_sets_and_observes_its_own_tasks():
    components, tasks, episodes = sampled(
        {"env": GUESS, "env_config": {"upper": 15, "max_turns": 1}},
        {"env": LAKE, "env_config": {"max_turns": 12}, "curriculum": LEVELS},
    )
    sizes = {t.environment: t.options.get("size") for t in tasks}
    assert sizes == {GUESS: None, LAKE: 3}
    for trajectory in episodes.trajectories:  # guess is solved, lake is not
        trajectory.success = trajectory.task.environment == GUESS
    components.assign_rewards(episodes, 0)
    curriculum = components.by_environment[LAKE].curriculum.call
    assert curriculum.level == 0
    assert curriculum.get_state()["solved"] == [0.0] * 4  # the window, none of guess
    assert components.by_environment[GUESS].curriculum is None
    for trajectory in episodes.trajectories:
        trajectory.success = True
    components.assign(tasks, 1)
    components.assign_rewards(episodes, 1)
    changed = components.assign(tasks, 2)
    assert {t.environment: t.options.get("size") for t in changed} == {
        GUESS: None,
        LAKE: 4,
    }
