"""Live notes of a run's processes, and monitors of rollouts."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from ray.tune.result import TRIAL_INFO
from team_helpers import tiny_model

from rllib_llm import GRPOConfig
from rllib_llm.data.types import Task, TurnResult
from rllib_llm.env_runner.monitor import RolloutMonitor, describe_waits
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.monitoring.live import algorithm_mixin as phases
from rllib_llm.monitoring.live import board


class Slow(TextEnv):
    """One-turn environment with a slow step."""

    max_turns = 1
    wait_s = 0.6

    def start(self, rng):
        """Begin."""
        return "Go."

    def parse(self, completion):
        """Take anything."""
        return completion or "-"

    def reply(self, action):
        """Think."""
        time.sleep(self.wait_s)
        return TurnResult("Done.", 1.0, terminated=True)

    def random_action(self, rng):
        """Say a digit."""
        return str(rng.integers(10))


def slot(index, waiting_for, since, seed=0, modules=()):
    agents = [SimpleNamespace(module_id=m, request_id=1) for m in modules]
    return SimpleNamespace(
        index=index,
        waiting_for=waiting_for,
        since=since,
        task=Task(group_id=0, rollout=0, seed=seed),
        recorder=SimpleNamespace(agent_states=agents),
    )


def test_waits_are_counted_and_the_longest_named():
    slots = [slot(i, "step", since=90.0 + i, seed=10 + i) for i in range(5)]
    slots += [slot(7, "engine", since=99.0, modules=["solver"]), slot(8, None, 0.0)]
    assert describe_waits(slots, now=100.0) == (
        "5 wait for env.step (slot 0, seed 10: 10 s; slot 1, seed 11: 9 s; "
        "slot 2, seed 12: 8 s; 2 more). "
        "1 wait for a turn (slot 7, seed 0, solver: 1 s)."
    )
    assert describe_waits([], 0.0) == "No episode is running."


def rollout(*slots):
    return SimpleNamespace(slots=slots, num_done=3, num_tasks=8, num_unfinished_turns=2)


def test_a_stall_is_reported_once_and_a_turn_ends_it(caplog):
    monitor = RolloutMonitor(stall_after_s=0.05, period_s=0.01)
    with monitor.watching(rollout(slot(4, "reset", since=time.perf_counter(), seed=9))):
        wait_for(lambda: monitor._num_stalls == 1)
        time.sleep(0.1)
        assert caplog.text.count("Sampling stalls") == 1
        monitor.turn_finished()
        wait_for(lambda: monitor._num_stalls == 2)
    assert "3 of 8 episodes are done, engines hold 2 unfinished turns" in caplog.text
    assert "1 wait for env.reset (slot 4, seed 9" in caplog.text
    stalls, longest = monitor.take_stats()
    assert stalls == 2 and longest >= 0.1
    assert monitor.take_stats() == (0, 0.0)


def test_without_a_limit_stalls_are_not_reported(caplog):
    monitor = RolloutMonitor(None, period_s=0.01)
    with monitor.watching(rollout()):
        time.sleep(0.05)
    assert monitor.take_stats()[0] == 0 and not caplog.text
    assert not [t for t in threading.enumerate() if t.name == "monitor"]


def wait_for(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.005)


def test_trial_id_of_a_config():
    info = SimpleNamespace(trial_id="ab_1")
    assert board.trial_of({TRIAL_INFO: info, "lr": 1.0}) == "ab_1"
    assert board.trial_of({}) == board.trial_of(GRPOConfig()) == "none"


# In a run -----------------------------------------------------------------------------


def slow_run(**alarms):
    return (
        GRPOConfig()
        .environment(Slow)
        .language_model(model=tiny_model())
        .generation(max_new_tokens=2)
        .rollouts(episodes_per_iteration=2, group_size=2)
        .training(drop_zero_variance_groups=False)
        .env_runners(num_envs_per_env_runner=2)
        .alarms(**alarms)
    )


@pytest.fixture
def watcher(ray_session):
    """Registered watcher."""
    made = board.Watcher()
    yield made
    made.close()


@pytest.mark.ray
def test_phases_and_stalls_reach_a_watcher(watcher, caplog, monkeypatch):
    algo = slow_run(stalled={"after_s": 0.1}).build_algo()
    seen = []
    monkeypatch.setattr(algo._notes, "write", lambda **note: seen.append(note["phase"]))
    algo.env_runner._monitor._period = 0.02
    result = algo.train()
    assert seen == [phases.SAMPLING, phases.UPDATING, phases.SYNCING]
    assert result["env_runners"]["num_stalls"] >= 1
    assert result["env_runners"]["longest_wait_s"] >= 0.1
    assert result["alarms"]["stalled"] == 1
    assert "wait for env.step (slot" in caplog.text
    notes = {who: note for _, who, note in watcher.read()}
    assert notes["train_0"]["done"] == notes["train_0"]["tasks"] == 2
    assert notes[board.ALGORITHM]["phase"] == phases.STARTING
    algo.stop()
    assert not list(watcher.read())


@pytest.mark.ray
def test_notes_are_written_only_with_a_watcher(watcher):
    topic = board.new_topic("t_0")
    board.Publisher(topic, "train_1").write(done=1)
    board.Publisher(None, "train_2").write(done=1)
    ((found, who, note),) = watcher.read()
    assert (found, who, note["done"]) == ("t_0", "train_1", 1)
    board.forget(topic)
    watcher.close()
    assert not list(watcher.read()) and board.new_topic("t_0") is None
