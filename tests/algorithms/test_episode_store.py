"""Whole episodes on disk: nothing is lost or changed, and each rule of drawing."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from learner_helpers import fake_episode

from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data, num_tokens
from rllib_llm.data.episode_records import episode_record, recorded_episode
from rllib_llm.data.types import Choice, StopReason
from rllib_llm.offline.episode_store import EpisodeStore


def stored(count=6, **settings):
    """A store with one episode of each iteration, of three tasks."""
    store = EpisodeStore(**{"capacity_tokens": 10**6, **settings})
    for number in range(count):
        store.add([valued(number)], iteration=number)
    return store


def valued(number, advantage=None):
    episode = fake_episode(number, group=number % 3)
    episode_data(episode).advantage = number + 0.5 if advantage is None else advantage
    return episode


def numbers(episodes):
    return [episode_data(e).task.rollout for e in episodes]


def test_a_record_has_all_that_learners_read():
    before = fake_episode(3, turns=4, stop=StopReason.MAX_TURNS, breaks=True, group=7)
    data = episode_data(before)
    data.advantage, data.success = np.array([1.0, 0.1, -2.0, 1 / 3]), True
    data.masked_turns = frozenset({2})
    turns = before.get_extra_model_outputs(columns.TURN)
    expert = np.array([0.25, 0.75], np.float32)
    others, weights = [np.array([5, 6], np.int32)], np.array([0.5, 0.5], np.float32)
    turns[1].choice = Choice(others, weights, expert)
    turns[2].version_changes, turns[2].conversation = ((1, 9),), 1
    after = recorded_episode(episode_record(before))
    copy = episode_data(after)
    assert after.is_truncated and len(after) == 4
    assert after.get_rewards() == list(before.get_rewards())
    assert copy.task == data.task and copy.success is True
    assert copy.stop_policy is data.stop_policy
    assert copy.masked_turns == data.masked_turns
    np.testing.assert_array_equal(copy.advantage, data.advantage)
    for old, new in zip(
        turns, after.get_extra_model_outputs(columns.TURN), strict=True
    ):
        for field in dataclasses.fields(old):
            if field.name not in ("choice", "seconds"):
                np.testing.assert_array_equal(
                    getattr(new, field.name), getattr(old, field.name)
                )
    choice = after.get_extra_model_outputs(columns.TURN)[1].choice
    np.testing.assert_array_equal(choice.others[0], [5, 6])
    np.testing.assert_array_equal(choice.expert_probs, expert)


def test_a_drawn_episode_is_the_stored_one_bit_by_bit():
    store = stored(3)
    episodes, ages = store.draw(3, iteration=4)
    assert numbers(episodes) == [0, 1, 2] and ages == [4, 3, 2]
    for number, episode in enumerate(episodes):
        expected = episode_record(valued(number))
        (turns,) = (p["turns"] for p in episode_record(episode)["parts"])
        for old, new in zip(expected["parts"][0]["turns"], turns, strict=True):
            assert new["action_logps"].tobytes() == old["action_logps"].tobytes()
            assert new["prompt_ids"].tobytes() == old["prompt_ids"].tobytes()


def test_the_oldest_leave_above_the_capacity_and_above_the_age():
    sizes = [num_tokens(fake_episode(n, group=n % 3)) for n in range(6)]
    store = stored(capacity_tokens=sum(sizes[-3:]))
    assert [e.iteration for e in store.entries] == [3, 4, 5]
    assert store.num_tokens == sum(sizes[-3:])
    store.max_age = 2
    store.expire(iteration=6)
    assert [e.iteration for e in store.entries] == [4, 5]
    alone = stored(1, capacity_tokens=1)
    assert len(alone) == 0 and alone.draw(4, 1) == ([], [])


def test_recency_draws_the_newest():
    assert numbers(stored(draw="recency").draw(2, 6)[0]) == [4, 5]


def test_uniform_draws_all_equally_often():
    store = stored(4)
    counts = np.zeros(4)
    for iteration in range(400):
        counts[numbers(store.draw(1, iteration)[0])] += 1
    assert counts.min() > 70


def test_task_balanced_draws_each_task_before_any_twice():
    store = EpisodeStore(capacity_tokens=10**6, draw="task_balanced")
    easy = [fake_episode(n, group=0) for n in range(20)]
    hard = [fake_episode(20 + n, group=1 + n) for n in range(2)]
    store.add([*easy, *hard], iteration=0)
    for iteration in range(20):
        groups = [episode_data(e).task.seed for e in store.draw(3, iteration)[0]]
        assert sorted(groups) == [0, 1, 2]


def test_priorities_are_drawn_in_proportion_to_their_power():
    store = EpisodeStore(capacity_tokens=10**6, draw="priority", alpha=2.0)
    store.add([valued(0, 1.0), valued(1, [-2.0, 2.0, 2.0]), valued(2, 0.0)], 0)
    counts = np.zeros(3)
    for iteration in range(2000):
        counts[numbers(store.draw(1, iteration)[0])] += 1
    assert counts[2] == 0  # an advantage of 0 has no gradient
    assert counts[1] / counts[0] == pytest.approx(4.0, rel=0.2)
    assert numbers(store.draw(3, 0)[0]) == [0, 1, 2]  # last, but not never


def test_what_cannot_be_used_is_replaced():
    drawn, _ = stored().draw(3, 9, lambda e: episode_data(e).task.rollout % 2 == 0)
    assert numbers(drawn) == [0, 2, 4]


def test_unused_bytes_leave_the_file():
    store = stored(1, capacity_tokens=200)
    line = store.entries[0].size
    added = 2 * (1 << 20) // line
    store.add((valued(n) for n in range(added)), iteration=1)
    store.expire(0)
    assert store.num_bytes < 1.2 * (1 << 20) < added * line
    assert len(store.draw(1, 2)[0]) == 1


def test_a_copy_of_index_and_lines_draws_the_same():
    store = stored(capacity_tokens=200, draw="priority")
    copy = stored(2, capacity_tokens=200, draw="priority")
    lines = io.BytesIO()
    copy.set_index(store.get_index())
    store.write_lines(lines)
    lines.seek(0)
    copy.read_lines(lines)
    for each in (store, copy):
        each.add([valued(9)], iteration=9)
    first, second = (each.draw(2, 10)[0] for each in (store, copy))
    assert numbers(first) == numbers(second) and len(first) == 2
    assert [num_tokens(e) for e in first] == [num_tokens(e) for e in second]
    assert all(len(agent_episodes(e)) == 1 for e in second)


LIMIT_BYTES = 16 << 20
MORE_THAN_MEMORY = f"""
import resource

import numpy as np
from learner_helpers import fake_episode

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.offline.episode_store import EpisodeStore

episode = fake_episode(0, turns=1)
(turn,) = episode.get_extra_model_outputs(columns.TURN)
turn.action_ids = np.arange(40_000, dtype=np.int32)
turn.action_logps = -np.ones(40_000, np.float32)
episode_data(episode).advantage = 1.0
store = EpisodeStore(capacity_tokens=10**9)
store.add([episode], 0)
store.draw(1, 1)  # what a first call imports is counted as used
pages = int(open("/proc/self/statm").read().split()[5])
limit = pages * resource.getpagesize() + {LIMIT_BYTES}
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(2 * {LIMIT_BYTES}, np.uint8)
except MemoryError:
    print("limited")
while store.num_bytes < 4 * {LIMIT_BYTES}:
    store.add([episode], len(store))
drawn, _ = store.draw(3, len(store))
for each in drawn:
    (copy,) = each.get_extra_model_outputs(columns.TURN)
    assert np.array_equal(copy.action_ids, turn.action_ids)
print(len(drawn), "drawn")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_store_holds_more_than_memory():
    done = subprocess.run(
        [sys.executable, "-c", MORE_THAN_MEMORY],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["limited", "3 drawn"]
