"""Greedy rollouts: sampled once per task, used as baseline, never trained on."""

from __future__ import annotations

import numpy as np
import pytest
from learner_helpers import TINY

from rllib_llm import GRPOConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

REMAX = {"name": "group", "baseline": "greedy", "scale": "none"}


def remax(env="bandit_probe-v0", group_size=2, **rollouts):
    return (
        GRPOConfig()
        .environment(env)
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=8, group_size=group_size, **rollouts)
        .training(advantage_estimator=[REMAX], drop_zero_variance_groups=False, lr=1e-3)
        .sft(demonstrations=100, mistake_rate=0.7, epochs=1, lr=3e-3)
    )


@pytest.fixture
def played(monkeypatch):
    """Calls to this process's EnvRunners: (tasks, explore)."""
    calls = []
    sample = LLMEnvRunner.sample

    def recorded(self, *, tasks=None, explore=None, **kwargs):
        calls.append((tasks, explore))
        return sample(self, tasks=tasks, explore=explore, **kwargs)

    monkeypatch.setattr(LLMEnvRunner, "sample", recorded)
    return calls


@pytest.mark.parametrize("group_size", [1, 4])
def test_one_greedy_rollout_of_each_task(played, group_size):
    algo = remax(group_size=group_size).build_algo()
    episodes = algo.collect()
    (sampled, _), (greedy, explore) = played
    assert explore is False and len(episodes) == len(sampled) == 8
    assert len(greedy) == 8 // group_size
    by_group = {t.group_id: t for t in sampled}
    for task in greedy:
        same = by_group.pop(task.group_id)
        assert (task.seed, task.options) == (same.seed, same.options)
        assert task.rollout == group_size  # of no member of the group
    assert not by_group
    again = {
        episode_data(e).task.group_id: e.get_return()
        for e in algo.play_extra_tasks(greedy, explore=False)
    }
    for episode in episodes:
        data = episode_data(episode)
        assert data.greedy_return == again[data.task.group_id]
        assert data.advantage == episode.get_return() - data.greedy_return
    assert algo.metrics.peek("num_greedy_rollouts") == 8 // group_size
    algo.stop()


def test_they_count_in_no_metric_but_their_own():
    algo = remax().build_algo()
    result = algo.train()
    assert result["num_greedy_rollouts"] == 4
    assert np.isfinite(result["greedy_return_mean"])
    assert result["env_runners"]["num_episodes"] == 8
    again = algo.train()["env_runners"]
    assert again["num_episodes"] == 8 and again["num_episodes_lifetime"] == 16
    algo.stop()


def test_greedy_rollouts_get_the_runs_rewards():
    bonus = [{"name": "environment", "weight": 0.0}, {"name": "format", "invalid": -2}]
    algo = remax(rewards=bonus).build_algo()
    episodes = algo.collect()
    greedy_returns = {episode_data(e).greedy_return for e in episodes}
    assert greedy_returns <= {0.0, -2.0}  # never the environment's 1.0
    algo.stop()


@pytest.mark.slow
def test_runners_of_other_processes_play_them():
    algo = remax().env_runners(num_env_runners=2).build_algo()
    episodes = algo.collect()
    assert len(episodes) == 8
    assert all(episode_data(e).greedy_return is not None for e in episodes)
    algo.stop()


def test_agents_are_compared_with_themselves():
    algo = remax("secret_sum-v0").build_algo()
    for episode in algo.collect():
        for part in episode.agent_episodes.values():
            data = episode_data(part)
            expected = part.get_return() - data.greedy_return
            assert np.allclose(data.advantage, expected)
    algo.stop()


def test_a_task_without_its_greedy_rollout_is_left_out(monkeypatch):
    algo = remax().build_algo()
    play = algo.play_extra_tasks
    monkeypatch.setattr(algo, "play_extra_tasks", lambda t, **kw: play(t[1:], **kw))
    episodes = algo.collect()
    assert {episode_data(e).task.group_id for e in episodes} == {1, 2, 3}
    algo.stop()
