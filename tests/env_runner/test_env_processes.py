"""Environments in threads and in separate processes; libraries with global seeds."""

import os
import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from runner_helpers import make_runner
from seeding_toys import Restless, SeedsGlobally, Tamed, TeamThatSeeds
from team_helpers import Run, team_config

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.check_groups import check_first_texts
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs import IsolatedRandomState
from rllib_llm.envs.random_states import global_states
from rllib_llm.errors import EnvContractError


def groups_of(env, **rollouts):
    """Play four groups of four, eight episodes at a time."""
    runner = make_runner(env, **rollouts)
    tasks = TaskSource(seed=0, group_size=4).next_groups(4)
    episodes = runner.sample(tasks=tasks)
    runner.stop()
    return episodes


def test_groups_with_different_first_texts_are_refused():
    with pytest.raises(EnvContractError) as caught:
        check_first_texts(groups_of(SeedsGlobally), SeedsGlobally)
    text = str(caught.value)
    assert text.startswith("Rollouts of group ") and "SeedsGlobally began with" in text
    for remedy in ("IsolatedRandomState(seed).swapped_in()", "env_processes=True"):
        assert remedy in text


@pytest.mark.parametrize(
    ("env", "rollouts"), [(SeedsGlobally, {"env_processes": True}), (Tamed, {})]
)
def test_processes_or_own_random_states_isolate_a_seeding_library(env, rollouts):
    episodes = groups_of(env, **rollouts)
    check_first_texts(episodes, env)
    assert len({e.get_observations(0) for e in episodes}) == 4
    assert {e.get_return() for e in episodes} == {2.0}


def test_sample_groups_checks_the_first_texts():
    episodes = groups_of(SeedsGlobally)
    algorithm = SimpleNamespace(
        play_groups=lambda count: episodes, config=SimpleNamespace(env="seeding-v0")
    )
    with pytest.raises(EnvContractError, match="environment seeding-v0 began with"):
        LLMAlgorithm.sample_groups(algorithm, 4)


def test_environments_of_several_agents_run_in_processes():
    rollouts = {"group_size": 4, "episodes_per_iteration": 8, "env_processes": True}
    config = team_config(TeamThatSeeds, GRPOConfig, policies=None, rollouts=rollouts)
    run = Run(config, learner=False)
    episodes = run.sample()
    check_first_texts(episodes, TeamThatSeeds)
    data = [episode_data(e) for e in episodes]
    groups = {d.task.group_id for d in data}
    assert len(groups) == len({str(d.first_texts) for d in data}) < len(episodes)


@pytest.mark.parametrize(
    # The limit of a step that hangs is longer than processes take to start.
    "how",
    ["exit", pytest.param("hang", marks=pytest.mark.slow), "raise"],
)
def test_a_broken_process_is_replaced(how, tmp_path):
    runner = make_runner(
        Restless,
        env_config={"how": how, "marks": str(tmp_path)},
        env_processes=True,
        step_timeout_s=20.0 if how == "hang" else 30.0,
    )
    episodes = runner.sample(num_episodes=2)
    assert [e.get_return() for e in episodes] == [1.0, 1.0]
    assert not runner.failures and len(os.listdir(tmp_path)) == 2
    pids = {int(e.get_observations(0).split()[-1][:-1]) for e in episodes}
    assert os.getpid() not in pids
    runner.stop()


def test_own_random_state_leaves_the_global_states_unchanged():
    before = global_states()
    state = IsolatedRandomState(1, torch=True)

    def draw():
        with state.swapped_in():
            return random.random(), np.random.random(), torch.rand(1).item()

    first = draw()
    copied = pickle.loads(pickle.dumps(state))
    assert global_states() == before
    second = draw()
    state = copied
    assert draw() == second != first
    state = IsolatedRandomState(1, torch=True)
    assert draw() == first and global_states() == before


def test_global_states_show_which_library_has_drawn():
    for name, change in (
        ("random", random.random),
        ("numpy.random", np.random.random),
        ("torch", lambda: torch.rand(1)),
    ):
        before = global_states()
        change()
        after = global_states()
        assert [n for n in before if before[n] != after[n]] == [name]
