"""Runs in which EnvRunners are killed, stopped, restarted or added."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import ray
from side_by_side import flat

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.data.episode_data import task_of
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
# Ray's processes cannot import tests.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


class Slow(TextEnv):
    """Takes a moment for its only turn, so that an EnvRunner can die in it."""

    max_turns = 1

    def start(self, rng):
        return f"Go {rng.integers(9)}."

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        time.sleep(0.2)
        reward = sum(action.count(vowel) for vowel in "aeiou") / 5
        return TurnResult("Done.", reward=reward, terminated=True)

    def random_action(self, rng):
        return "a"


def config(runners=2, **faults):
    return (
        LLMPPOConfig()
        .environment(Slow)
        .language_model(tiny=TINY)
        # A table of drafts would differ after a restart, and with it the last bit.
        .generation(max_new_tokens=4, num_speculative_tokens=0)
        .rollouts(episodes_per_iteration=16, group_size=2)
        .training(lr=1e-2)
        # One at a time: the last bit of a log-probability depends on its batch.
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=1)
        .evaluation(evaluation_interval=None)
        .fault_tolerance(
            delay_between_env_runner_restarts_s=1.0,
            env_runner_health_probe_timeout_s=5.0,
            **faults,
        )
        .debugging(seed=0)
    )


def on_runners(algo, call):
    """Return the answers of the remote EnvRunners, by id."""
    limit = algo.config.call_limit
    return call_runners(algo.env_runner_group, call, limit=limit, version=None)


def process(runner):
    return os.getpid()


def version(runner):
    return runner._weights_seq_no, runner.has_all_weights


def signal_while_sampling(algo, pid, number):
    """Send a signal to an EnvRunner shortly after it has begun to sample."""
    timer = threading.Timer(0.5, os.kill, (pid, number))
    play = type(algo).play_groups

    def signal_and_play(num_groups):
        del algo.play_groups  # once
        timer.start()
        return play(algo, num_groups)

    algo.play_groups = signal_and_play


def collected(algo):
    """Return a list to which the tasks of each iteration are added."""
    collect, tasks = algo.collect, []

    def keep():
        episodes = collect()
        tasks.append([(task_of(e).group_id, task_of(e).rollout) for e in episodes])
        return episodes

    algo.collect = keep
    return tasks


def assert_same_state(left, right):
    left, right = flat(left), flat(right)
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert np.array_equal(value, right[key]), key


def weights(algo):
    return algo.learner_group.get_state()["learner"]["rl_module"]


def wait_for_runners(algo, number):
    """Restore EnvRunners until there are as many healthy ones."""
    deadline = time.monotonic() + 120
    while algo.env_runner_group.num_healthy_remote_workers() < number:
        assert time.monotonic() < deadline
        algo.restore_env_runners(algo.env_runner_group)


def test_env_runners_that_die_stop_or_join_change_no_weight(caplog):
    """Weights are equal, to the bit, to those of a run in one process."""
    alone = config(runners=0).build_algo()
    for _ in range(4):
        alone.train()
    algo = config(batch_timeout_s=8.0).build_algo()
    tasks = collected(algo)
    algo.train()
    pids = on_runners(algo, process)
    try:
        for victim, number in ((2, signal.SIGKILL), (1, signal.SIGSTOP)):
            signal_while_sampling(algo, pids[victim], number)
            result = algo.train()
            assert result["num_groups_retried"] == 4
            assert result["num_episodes_lost"] == 0
            wait_for_runners(algo, 2)
            done = algo.iteration
            assert on_runners(algo, version) == {1: (done, True), 2: (done, True)}
        after = on_runners(algo, process)
        assert not set(after.values()) & set(pids.values())
        assert "EnvRunner 2 died in SampleTasks() with weights version 1" in caplog.text
        assert "EnvRunner 1 did not answer within 8 s" in caplog.text
        assert "in SampleTasks() with weights version 2" in caplog.text
        # One that joins has its first weights, of version 0.
        algo.env_runner_group.add_workers(1)
        assert on_runners(algo, version)[3] == (0, False)
        assert algo.train()["num_groups_retried"] == 0
        assert "EnvRunners [3] have restarted; they get all weights" in caplog.text
        assert on_runners(algo, version)[3] == (4, True)
        everything = [(g, r) for g in range(32) for r in range(2)]
        assert [task for part in tasks for task in part] == everything
        assert_same_state(weights(algo), weights(alone))
    finally:
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        algo.stop()
        alone.stop()
