"""LLMEnvRunner.sample_groups: groups that go on from call to call."""

import threading
import time

import pytest
from runner_helpers import Countdown, make_runner

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopReason
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.env_runner.task_queue import GroupsWanted, TaskQueue


class Gated(Countdown):
    """Waits in its first step until its gate is open, if its length is 3."""

    gate = threading.Event()

    def reply(self, action):
        if self.left == 3:
            Gated.gate.wait()
        return super().reply(action)


def tasks(lengths, group_size=2):
    """Return the tasks of one group per length."""
    made = TaskSource(seed=1, group_size=group_size).next_groups(len(lengths))
    for task in made:
        task.options["length"] = lengths[task.group_id]
    return made


@pytest.fixture(scope="module")
def runner():
    made = make_runner(Gated)
    yield made
    Gated.gate.set()
    made.stop()


def turns(episode):
    return episode.get_extra_model_outputs(columns.TURN)


def test_long_groups_do_not_hold_up_short_ones(runner):
    Gated.gate.clear()
    requested = tasks([2, 3, 2])
    groups = runner.sample_groups(requested, GroupsWanted(2))
    assert sorted(groups) == [0, 2]
    assert [episode_data(e).task for e in groups[0]] == requested[:2]
    assert all(len(e) == 2 and e.is_done for e in groups[2])
    Gated.gate.set()
    rest = runner.sample_groups([], GroupsWanted(5))
    assert sorted(rest) == [1] and [len(e) for e in rest[1]] == [3, 3]
    assert runner.sample_groups([], GroupsWanted(1)) == {}


def test_required_groups_are_waited_for(runner):
    Gated.gate.clear()
    threading.Timer(0.3, Gated.gate.set).start()
    started = time.perf_counter()
    groups = runner.sample_groups(
        tasks([2, 3]), GroupsWanted(1, required=frozenset({1}))
    )
    assert sorted(groups) == [0, 1] and time.perf_counter() - started > 0.25


def test_turns_go_on_with_new_weights(runner):
    Gated.gate.clear()
    runner.sample_groups(tasks([3, 2]), GroupsWanted(1))
    before = runner._weights_seq_no
    runner.set_weights_version(before + 5)
    Gated.gate.set()
    (episodes,) = runner.sample_groups([], GroupsWanted(1)).values()
    for episode in episodes:
        versions = [turn.weights_seq_no for turn in turns(episode)]
        assert versions[0] == before and versions[-1] == before + 5


def test_time_limits_do_not_count_the_time_between_calls():
    Gated.gate.clear()
    made = make_runner(Gated, step_timeout_s=2.0, max_retries=0)
    made.sample_groups(tasks([3, 2]), GroupsWanted(1))
    assert made.idle_s == 0.0
    time.sleep(2.2)
    threading.Timer(0.3, Gated.gate.set).start()
    (episodes,) = made.sample_groups([], GroupsWanted(1)).values()
    assert len(episodes) == 2 and not made.failures
    assert 2.2 <= made.idle_s < 2.5
    made.stop()


def test_what_is_left_can_be_discarded(runner):
    Gated.gate.clear()
    runner.sample_groups(tasks([3, 2]), GroupsWanted(1))
    with pytest.raises(RuntimeError, match="still running"):
        runner.sample(tasks=tasks([1]))
    runner.drop_groups()
    assert runner._rollout.num_tasks == 0
    Gated.gate.set()
    assert len(runner.sample(tasks=tasks([1, 1]))) == 4
    assert sorted(runner.sample_groups(tasks([1]), GroupsWanted(1))) == [0]


def test_the_same_episodes_as_in_one_call(runner):
    Gated.gate.set()
    requested = tasks([1, 4, 2])
    whole = [
        [t.action_ids.tolist() for t in turns(e)]
        for e in runner.sample(tasks=requested)
    ]
    groups = runner.sample_groups(requested, GroupsWanted(1))
    while len(groups) < 3:
        groups |= runner.sample_groups([], GroupsWanted(1))
    parts = [
        [t.action_ids.tolist() for t in turns(e)] for i in range(3) for e in groups[i]
    ]
    assert parts == whole


def test_a_group_of_failed_tasks_is_complete():
    queue = TaskQueue(tasks([1, 1]), max_failed_fraction=1.0)
    given = [queue.take() for _ in range(4)]
    for index, task, attempt in given[:2]:
        queue.drop(index, task, attempt, StopReason.ENV_ERROR, "broken")
    assert queue.has(GroupsWanted(1)) and not queue.has(GroupsWanted(2))
    assert not queue.has(GroupsWanted(1, required=frozenset({1})))
    groups, failures = queue.pop_complete()
    assert groups == {0: []} and len(failures) == 2 and queue.num_tasks == 2
    queue.finish(given[2][0], "one")
    queue.finish(given[3][0], "two")
    assert queue.has(GroupsWanted(9)) and queue.pop_complete() == (
        {1: ["one", "two"]},
        [],
    )
