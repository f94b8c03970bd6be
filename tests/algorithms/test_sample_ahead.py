"""SampleAhead over EnvRunners whose time is simulated."""

import collections
import dataclasses
import heapq
import itertools
import random
import types

import pytest

from rllib_llm import compat
from rllib_llm.algorithms.driver import sample_ahead
from rllib_llm.algorithms.driver.runner_calls import GroupsResult, SampleGroups
from rllib_llm.algorithms.driver.sample_ahead import Batch, SampleAhead
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.errors import EnvRunnerError
from rllib_llm.remote_calls import TimeLimit

BATCH = TimeLimit(3600.0, "fault_tolerance.batch_timeout_s")
CALL = TimeLimit(60.0, "fault_tolerance.call_timeout_s")


@dataclasses.dataclass
class Weights:
    """Weights of a version, for EnvRunners that have had all of them once, or all."""

    version: int
    everything: bool = False


class Runners:
    """EnvRunners that finish each group after a duration, on a common clock.

    Args:
        count: Number of EnvRunners.
        seconds: Function of a group's id: its duration on any EnvRunner.
        slots: Groups that an EnvRunner samples at once.
    """

    def __init__(self, count, seconds=lambda group: 1.0, slots=4):
        self.seconds, self.slots = seconds, slots
        self.healthy = list(range(1, count + 1))
        self.clock, self.busy = 0.0, 0.0
        self.calls = {}  # running call by runner
        self.waiting = {i: collections.deque() for i in self.healthy}
        self.running = {i: [] for i in self.healthy}  # heap of (end, group, version)
        self.complete = {i: {} for i in self.healthy}
        self.versions = dict.fromkeys(self.healthy, 0)
        self.has_all = dict.fromkeys(self.healthy, True)
        self.drops_calls = False
        self.discarded = 0

    def foreach_env_runner_async(self, call, *, tag, remote_worker_ids):
        (runner,) = remote_worker_ids
        assert runner in self.healthy and runner not in self.calls
        if self.drops_calls:
            return 0
        self.calls[runner] = call
        if call.weights is not None:
            if not (self.has_all[runner] or call.weights.everything):
                self.calls[runner] = None  # answers None
                return 1
            self.has_all[runner] = True
            self.versions[runner] = call.weights.version
        elif call.version not in (None, self.versions[runner]):
            self.calls[runner] = None
            return 1
        for group in dict.fromkeys(task.group_id for task in call.tasks):
            self.waiting[runner].append(group)
        self._start(runner)
        return 1

    def _start(self, runner):
        while self.waiting[runner] and len(self.running[runner]) < self.slots:
            group = self.waiting[runner].popleft()
            end = self.clock + self.seconds(group)
            entry = (end, group, self.versions[runner])
            heapq.heappush(self.running[runner], entry)

    def advance(self, until):
        """Let the called EnvRunners sample up to a time."""
        assert until < 1e4, "The batch never becomes complete."
        for runner, call in self.calls.items():
            while call is not None and not self._is_answered(runner):
                if not self.running[runner] or self.running[runner][0][0] > until:
                    break
                self.clock, group, version = heapq.heappop(self.running[runner])
                self.complete[runner][group] = [(group, version, self.clock)]
                self._start(runner)
        self.clock = until

    def _is_answered(self, runner):
        call = self.calls[runner]
        if call is None:
            return True
        left = {group for _, group, _ in self.running[runner]} | set(
            self.waiting[runner]
        )
        if not left:
            return True
        return (
            len(self.complete[runner]) >= call.wanted.count
            and not left & call.wanted.required
        )

    def fetch_ready_async_reqs(self, *, tags, timeout_seconds):
        self.advance(self.clock + timeout_seconds)
        answered = [r for r in self.calls if self._is_answered(r)]
        found = []
        for runner in answered:
            call = self.calls.pop(runner)
            groups, self.complete[runner] = self.complete[runner], {}
            left = {group for _, group, _ in self.running[runner]}
            left = frozenset(left.union(self.waiting[runner]))
            found.append((runner, call and GroupsResult(groups, left, {}, 0)))
        return found

    def num_in_flight_async_reqs(self, tag):
        return sum(tag.endswith(f"_{runner}") for runner in self.calls)

    def kill(self, runner):
        self.calls.pop(runner, None)
        self.waiting[runner].clear()
        self.running[runner].clear()
        self.complete[runner].clear()
        self.has_all[runner] = False
        self.versions[runner] = 0

    def healthy_env_runner_ids(self):
        return self.healthy

    def foreach_env_runner(
        self, calls, *, local_env_runner, remote_worker_ids, timeout_seconds
    ):
        assert not self.calls and not local_env_runner
        assert timeout_seconds == CALL.seconds
        for runner in self.healthy:
            self.waiting[runner].clear()
            self.running[runner].clear()
        self.discarded += 1
        return [(each.runner, None) for each in calls]


def sampler(runners, source=None, **settings):
    source = source or TaskSource(seed=0, group_size=2)
    given = {"groups": 8, "ahead": 1, "max_staleness": 1, "max_retries": 2}
    given |= {"batch_limit": BATCH, "call_limit": CALL, **settings}
    packed = itertools.count(1000)
    return SampleAhead(
        runners, source.next_groups, lambda: Weights(next(packed), True), **given
    )


def iterate(ahead, runners, count, update_s=3.0):
    """Take batches, each followed by an update; return (group, lag) per batch."""
    batches = []
    for update in range(count):
        batch = ahead.take(lambda: runners.healthy)
        batches.append([(group, update - v) for group, v, _ in batch.episodes])
        runners.advance(runners.clock + update_s)
        ahead.set_weights(Weights(update + 1))
    return batches


def slow_tail(seed):
    """Return durations of which a tenth is ten times as long."""
    draw = random.Random(seed)
    seconds = [draw.uniform(0.5, 1.5) * (10 if i % 10 == 3 else 1) for i in range(4000)]
    return seconds.__getitem__


@pytest.mark.parametrize("ahead, staleness", [(1, 1), (1, 2), (1, 4), (2, 2), (3, 5)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_lag_exceeds_the_bound_and_no_group_is_lost(ahead, staleness, count):
    runners = Runners(count, slow_tail(0))
    driver = sampler(runners, ahead=ahead, max_staleness=staleness)
    batches = iterate(driver, runners, 60)
    lags = [lag for batch in batches for _, lag in batch]
    assert max(lags) <= staleness
    groups = [group for batch in batches for group, _ in batch]
    assert len(set(groups)) == len(groups) == 60 * 8
    oldest_missing = min(set(range(10_000)) - set(groups))
    assert oldest_missing >= (60 - staleness) * 8


@pytest.mark.parametrize("staleness", [1, 3])
def test_slow_tasks_have_the_same_share_in_batches_as_in_tasks(staleness):
    runners = Runners(2, slow_tail(1))
    driver = sampler(runners, max_staleness=staleness)
    trained = [g for batch in iterate(driver, runners, 100) for g, _ in batch]
    assert sum(group % 10 == 3 for group in trained) == pytest.approx(80, abs=4)


def test_batches_hold_the_oldest_complete_groups_in_order():
    runners = Runners(2)
    batches = iterate(sampler(runners), runners, 5)
    assert [[g for g, _ in b] for b in batches] == [
        list(range(8 * i, 8 * i + 8)) for i in range(5)
    ]
    # The first batch is sampled by the first weights, each later one a batch ahead.
    assert [{lag for _, lag in batch} for batch in batches] == [{0}, {1}, {1}, {1}, {1}]


def test_idle_shares_are_parts_of_the_time_between_batches(monkeypatch):
    runners = Runners(1, lambda group: 1.0)
    monkeypatch.setattr(sample_ahead.time, "perf_counter", lambda: runners.clock)
    driver, shares = sampler(runners), []
    for update in range(4):
        batch = driver.take(lambda: runners.healthy)
        shares.append((batch.waited_s, batch.learner_idle_frac))
        runners.advance(runners.clock + 3.0)
        driver.set_weights(Weights(update + 1))
    assert shares[0][1] == 1.0
    for waited, share in shares[1:]:
        assert waited > 0.0 and share == pytest.approx(waited / (waited + 3.0))

    def result(idle, busy):
        return GroupsResult({}, frozenset(), {}, 0, idle_s=idle, busy_s=busy)

    results = [result(1.0, 2.0), result(0.0, 5.0)]
    assert Batch(results=results).sampler_idle_frac == 1 / 8
    assert Batch().sampler_idle_frac == 0.0


def test_the_update_hides_the_sampling():
    def seconds(ahead_of_time):
        runners = Runners(2)
        if ahead_of_time:
            iterate(sampler(runners), runners, 20)
            return runners.clock
        for _ in range(20):  # sampling and training take turns
            driver = sampler(runners)
            driver.take(lambda: runners.healthy)
            driver._discard()
            runners.advance(runners.clock + 3.0)
        return runners.clock

    # 8 groups on 2 x 4 slots take 1 s, the update 3 s.
    # EnvRunners are asked every 0.2 s.
    assert seconds(True) < 20 * 3.2 + 1.2
    assert seconds(False) > 20 * 4.0


def test_groups_of_a_dead_env_runner_are_sampled_again():
    runners = Runners(3, slow_tail(2))
    driver = sampler(runners, max_staleness=2)
    trained, retried = [], 0
    for update in range(40):
        if update % 5 == 2:
            runners.kill(1 + update % 3)
        batch = driver.take(lambda: runners.healthy)
        retried += batch.num_resampled
        assert not batch.num_lost
        trained += [group for group, *_ in batch.episodes]
        runners.advance(runners.clock + 2.0)
        driver.set_weights(Weights(update + 1))
    assert retried > 0 and len(set(trained)) == len(trained) == 40 * 8
    assert min(set(range(10_000)) - set(trained)) >= 40 * 8 - 3 * 8


def test_an_env_runner_that_does_not_answer_is_restarted(monkeypatch, caplog):
    runners = Runners(2)
    limit = TimeLimit(30.0, "fault_tolerance.batch_timeout_s")
    ahead = sampler(runners, batch_limit=limit)
    clock = types.SimpleNamespace(
        monotonic=lambda: runners.clock, perf_counter=lambda: runners.clock
    )
    monkeypatch.setattr(sample_ahead, "time", clock)
    ended = []
    monkeypatch.setattr(
        compat,
        "restart_env_runner",
        lambda group, runner: ended.append(runner) or group.kill(runner),
    )
    runners.running[2].append((1e3, -1, 0))  # hangs in a first group
    runners.slots = 1
    batches = iterate(ahead, runners, 4)
    assert ended == [2] and 30 < runners.clock < 200
    assert "EnvRunner 2 did not answer within 30 s" in caplog.text
    assert "in SampleGroups() with unknown weights" in caplog.text
    trained = [group for batch in batches for group, _ in batch]
    assert sorted(trained) == list(range(32))


def test_too_few_env_runners_at_the_end_of_a_batch_lose_none_of_it():
    runners = Runners(2)
    ahead = sampler(runners, max_retries=9)
    calls = itertools.count()

    def healthy():
        # After the groups of the batch are complete, before the next are sent.
        if ahead._is_ready() and next(calls) == 0:
            raise EnvRunnerError("too few")
        return runners.healthy

    with pytest.raises(EnvRunnerError, match="too few"):
        ahead.take(healthy)
    assert len(ahead.get_state()) == 16
    batch = ahead.take(healthy)
    assert sorted(group for group, _, _ in batch.episodes) == list(range(8))


def test_a_group_that_is_lost_too_often_is_counted_and_replaced():
    runners = Runners(2, lambda group: 1e9 if group == 3 else 1.0)
    driver = sampler(runners, max_retries=1)
    holder = lambda: next(  # noqa: E731
        (
            i
            for i in runners.healthy
            if any(group == 3 for _, group, _ in runners.running[i])
        ),
        None,
    )
    killed = []

    def healthy():
        if runners.clock > 5 * (len(killed) + 1) and holder():
            killed.append(holder())
            runners.kill(killed[-1])
        return runners.healthy

    batches = [driver.take(healthy) for _ in range(4)]
    # Group 3 is due in the second batch, and again in the third, with new weights.
    assert len(killed) == 2 and [b.num_lost > 0 for b in batches] == [0, 0, 1, 0]
    assert sum(batch.num_resampled for batch in batches) >= 1
    trained = [group for batch in batches for group, *_ in batch.episodes]
    assert 3 not in trained and len(set(trained)) == len(trained)
    # Another group is admitted in its place.
    assert [len(batch.episodes) for batch in batches] == [8, 8, 8, 8]


def test_a_restarted_env_runner_gets_all_weights():
    runners = Runners(1)
    driver = sampler(runners)
    iterate(driver, runners, 2)
    runners.kill(1)
    driver.take(lambda: runners.healthy)
    assert runners.has_all[1] and runners.versions[1] >= 1000


def test_an_env_runner_that_restarts_between_calls_loses_no_group():
    runners = Runners(2, slow_tail(3))
    driver = sampler(runners, max_staleness=2)
    trained = [group for batch in iterate(driver, runners, 4) for group, _ in batch]
    send, restarted = runners.foreach_env_runner_async, []

    def restart_first(call, **kwargs):
        (runner,) = kwargs["remote_worker_ids"]
        if runner == 2 and not restarted and runners.running[runner]:
            restarted.append(runner)
            runners.kill(runner)  # RLlib does not notice
        return send(call, **kwargs)

    runners.foreach_env_runner_async = restart_first
    for _ in range(6):
        trained += [g for g, *_ in driver.take(lambda: runners.healthy).episodes]
    assert restarted and runners.has_all[2]
    assert len(set(trained)) == len(trained) == 80
    assert min(set(range(10_000)) - set(trained)) >= 80 - 3 * 8


def test_groups_of_an_env_runner_that_is_out_of_service_go_to_others():
    runners = Runners(2, slow_tail(4))
    driver = sampler(runners)
    iterate(driver, runners, 2)
    while runners.calls:  # let the running calls end, and then lose one EnvRunner
        driver._fetch(Batch())
    runners.kill(2)
    runners.healthy.remove(2)
    groups = [g for _ in range(3) for g, *_ in driver.take(lambda: [1]).episodes]
    assert sorted(groups) == list(range(16, 40))


def test_a_dropped_call_is_an_error():
    runners = Runners(2)
    runners.drops_calls = True
    with pytest.raises(EnvRunnerError, match="dropped a call to EnvRunner 1"):
        sampler(runners).take(lambda: runners.healthy)


def test_tasks_in_progress_are_in_the_state():
    source = TaskSource(seed=0, group_size=2)
    runners = Runners(2)
    driver = sampler(runners, source)
    iterate(driver, runners, 3)
    state = driver.get_state()
    assert [tasks[0]["group_id"] for tasks in state] == list(range(24, 32))

    again = Runners(2)
    restored = sampler(again, source)
    restored.set_state(state)
    groups = [g for batch in iterate(restored, again, 3) for g, _ in batch]
    assert groups == list(range(24, 48))  # none is repeated, none is left out


def test_a_restore_during_a_run_discards_what_is_in_progress():
    runners = Runners(2)
    driver = sampler(runners)
    iterate(driver, runners, 3)
    state = driver.get_state()
    iterate(driver, runners, 2)
    driver.set_state(state)
    assert runners.discarded == 1 and not runners.calls
    batch = driver.take(lambda: runners.healthy)
    assert [group for group, *_ in batch.episodes] == list(range(24, 32))


def test_calls_carry_new_weights_once():
    runners, seen = Runners(1), []
    send = runners.foreach_env_runner_async

    def record(call: SampleGroups, **kwargs):
        seen.append(call.weights and call.weights.version)
        return send(call, **kwargs)

    runners.foreach_env_runner_async = record
    iterate(sampler(runners), runners, 4)
    given = [version for version in seen if version is not None]
    assert given == sorted(set(given)) and seen[0] is None
