"""Sampling ahead: EnvRunners sample the next groups while the Learner trains.

A group may be sampled with older weights than those that it trains. Its age is bounded
when it is *admitted*, as AReaL does (Fu et al. 2025, arXiv:2505.24298, Section 5.1), so
no episode is discarded for its age: discarding would favour short episodes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.driver.runner_calls import (
    GroupsResult,
    SampleGroups,
    drop_groups,
)
from rllib_llm.algorithms.driver.runner_group_calls import (
    call_runners,
    restart_silent,
)
from rllib_llm.data.types import Task
from rllib_llm.env_runner.task_queue import GroupsWanted
from rllib_llm.errors import EnvRunnerError
from rllib_llm.remote_calls import TimeLimit, name_of

if TYPE_CHECKING:
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from rllib_llm.algorithms.driver.weight_sync import WeightCall

logger = logging.getLogger("rllib_llm")

_POLL_S = 0.2


@dataclasses.dataclass
class Group:
    """A group of rollouts that was admitted and has not been trained on.

    Attributes:
        tasks: Its tasks.
        batch: Number of the batch for which it was admitted or sent again; its weights
            are not older than those that the batch before has trained.
        runner: EnvRunner that samples it; None while it waits for one.
        attempts: Number of EnvRunners that were lost with it.
        episodes: Its episodes, once it is complete.
    """

    tasks: list[Task]
    batch: int
    runner: int | None = None
    attempts: int = 0
    episodes: list[Any] | None = None


@dataclasses.dataclass
class Batch:
    """Groups to train on, and what the EnvRunners reported meanwhile.

    Attributes:
        episodes: Their episodes, oldest group first.
        results: Results of EnvRunners since the last batch.
        num_lost: Episodes that were lost with their EnvRunners, repeatedly.
        num_resampled: Groups that were lost with an EnvRunner and sent again.
        waited_s: Seconds that the caller waited.
        learner_idle_frac: Those as a share of the time since the last batch.
    """

    episodes: list[Any] = dataclasses.field(default_factory=list)
    results: list[GroupsResult] = dataclasses.field(default_factory=list)
    num_lost: int = 0
    num_resampled: int = 0
    waited_s: float = 0.0
    learner_idle_frac: float = 0.0

    @property
    def sampler_idle_frac(self) -> float:
        """Share of the time in which EnvRunners did not sample."""
        idle = sum(result.idle_s for result in self.results)
        busy = sum(result.busy_s for result in self.results)
        return idle / (idle + busy) if self.results else 0.0


class SampleAhead:
    """Admits groups, sends them to EnvRunners, returns complete ones, oldest first.

    When batch ``b`` (from 0) is asked for, ``(b + 1 + ahead) * groups`` groups have
    been admitted in all. The batch contains every group that was admitted
    ``max_staleness`` batches ago, and waits for it if necessary.

    Args:
        runners: EnvRunners.
        new_tasks: Returns the tasks of the next groups.
        pack_all: Returns a call that loads all weights.
        groups: Groups per batch.
        ahead: Batches that are sampled ahead of the Learner, >= 1.
        max_staleness: Most batches between admission and training, >= ``ahead``.
        max_retries: Number of times that a lost group is sampled again.
        batch_limit: Time limit of a call that samples.
        call_limit: Time limit of other calls.
    """

    def __init__(
        self,
        runners: EnvRunnerGroup,
        new_tasks: Callable[[int], list[Task]],
        pack_all: Callable[[], WeightCall],
        *,
        groups: int,
        ahead: int,
        max_staleness: int,
        max_retries: int,
        batch_limit: TimeLimit,
        call_limit: TimeLimit,
    ):
        self._runners, self._new_tasks, self._pack_all = runners, new_tasks, pack_all
        self._groups_per_batch, self._ahead = groups, ahead
        self._max_staleness, self._max_retries = max_staleness, max_retries
        self._batch_limit, self._call_limit = batch_limit, call_limit
        self._groups: dict[int, Group] = {}  # by group_id, in the order of admission
        self._calls: dict[int, SampleGroups] = {}  # running ones, by EnvRunner
        self._deadlines: dict[int, float] = {}  # of these
        self._weights: WeightCall | None = None
        self._versions: dict[int, int] = {}  # of the weights sent to each EnvRunner
        self._num_batches = self._num_admitted = 0
        self._last_batch_at: float | None = None

    def set_weights(self, weights: WeightCall) -> None:
        """Send these weights with the next call to each EnvRunner."""
        self._weights = weights

    def take(self, healthy: Callable[[], Sequence[int]]) -> Batch:
        """Return the next batch; EnvRunners go on with the groups that follow.

        Args:
            healthy: Returns the ids of healthy EnvRunners; waits or raises if there is
                none.

        Raises:
            EnvRunnerError: RLlib dropped a call to an EnvRunner.
        """
        started, batch = time.perf_counter(), Batch()
        self._admit()
        while not self._is_ready():
            self._send(healthy(), batch)
            self._fetch(batch)
        batch.waited_s, batch.learner_idle_frac = self._waited_since(started)
        # Before the groups leave: an error of it must not lose them.
        runners = healthy()
        for group_id in self._next_batch():
            batch.episodes += self._groups.pop(group_id).episodes or ()
        self._num_batches += 1
        # The update follows: the EnvRunners sample meanwhile.
        self._send(runners, batch)
        return batch

    def _waited_since(self, started: float) -> tuple[float, float]:
        """Return seconds since then, and their share of those since the last batch."""
        now = time.perf_counter()
        before = started if self._last_batch_at is None else self._last_batch_at
        self._last_batch_at = now
        return now - started, (now - started) / (now - before)

    def get_state(self) -> list[list[dict[str, Any]]]:
        """Return the tasks of all admitted groups as checkpoint state."""
        return [
            [dataclasses.asdict(task) for task in group.tasks]
            for group in self._groups.values()
        ]

    def set_state(self, state: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Admit the groups of a checkpoint in place of all others.

        They are sampled with the weights that follow.
        """
        self._discard()
        groups = [[Task(**task) for task in tasks] for tasks in state]
        self._groups = {tasks[0].group_id: Group(tasks, 0) for tasks in groups}
        self._num_batches, self._num_admitted = 0, len(groups)

    def _discard(self) -> None:
        """Wait for the running calls; let EnvRunners discard what they have left."""
        was_called = bool(self._groups)
        self._groups = {}
        while self._calls:
            self._fetch(Batch())
        if was_called:
            call_runners(
                self._runners,
                drop_groups,
                limit=self._call_limit,
                version=None if self._weights is None else self._weights.version,
            )
        self._versions = {}

    # Admission -----------------------------------------------------------------------

    def _admit(self) -> None:
        limit = (self._num_batches + 1 + self._ahead) * self._groups_per_batch
        missing = limit - self._num_admitted
        for task in self._new_tasks(missing) if missing > 0 else ():
            group = self._groups.setdefault(task.group_id, Group([], self._num_batches))
            group.tasks.append(task)
        self._num_admitted = max(limit, self._num_admitted)

    def _due(self, batch: int) -> list[int]:
        """Return the groups that a batch must contain."""
        oldest = batch - self._max_staleness
        return [i for i, group in self._groups.items() if group.batch <= oldest]

    def _is_ready(self) -> bool:
        complete = {i for i, g in self._groups.items() if g.episodes is not None}
        enough = min(self._groups_per_batch, len(self._groups))
        return len(complete) >= enough and complete.issuperset(
            self._due(self._num_batches)
        )

    def _next_batch(self) -> list[int]:
        due = self._due(self._num_batches)
        others = [
            i
            for i, group in self._groups.items()
            if group.episodes is not None and i not in due
        ]
        chosen = {*due, *others[: max(0, self._groups_per_batch - len(due))]}
        return [i for i in self._groups if i in chosen]

    # EnvRunners ----------------------------------------------------------------------

    def _send(self, healthy: Sequence[int], batch: Batch) -> None:
        """Call every healthy EnvRunner that no call is running on."""
        for runner in {g.runner for g in self._groups.values()} - {None, *healthy}:
            if runner is not None and runner not in self._calls:
                self._retry(runner, frozenset(), batch)
        held: dict[int, list[int]] = {runner: [] for runner in healthy}
        waiting = []
        for group_id, group in self._groups.items():
            if group.runner is None:
                waiting.append(group_id)
            elif group.episodes is None and group.runner in held:
                held[group.runner].append(group_id)
        free = [runner for runner in healthy if runner not in self._calls]
        new = self._deal(waiting, held, free)
        due = set(self._due(self._num_batches))
        for runner in free:
            if new[runner] or held[runner]:
                count = math.ceil(self._groups_per_batch / len(healthy))
                required = frozenset(due.intersection(held[runner] + new[runner]))
                self._call(runner, new[runner], GroupsWanted(count, required))

    @staticmethod
    def _deal(
        waiting: list[int], held: Mapping[int, list[int]], free: Sequence[int]
    ) -> dict[int, list[int]]:
        """Return the waiting groups for each EnvRunner that is free.

        In turn, so that all begin with old groups, and up to equal shares of the
        unfinished groups. What is meant for the others waits for them.
        """
        dealt: dict[int, list[int]] = {runner: [] for runner in free}
        share = math.ceil((len(waiting) + sum(map(len, held.values()))) / len(held))
        queue = deque(waiting)
        while queue:
            with_room = [r for r in free if len(held[r]) + len(dealt[r]) < share]
            if not with_room:
                break
            for runner in with_room[: len(queue)]:
                dealt[runner].append(queue.popleft())
        return dealt

    def _call(self, runner: int, new: list[int], wanted: GroupsWanted) -> None:
        weights, version = self._weights, self._versions.get(runner)
        if weights is not None and version == weights.version:
            weights = None
        tasks = [task for group_id in new for task in self._groups[group_id].tasks]
        call = SampleGroups(tasks, wanted, weights, version)
        made = self._runners.foreach_env_runner_async(
            call, tag=_tag(runner), remote_worker_ids=[runner]
        )
        if made != 1:
            raise EnvRunnerError(
                f"RLlib dropped a call to EnvRunner {runner}: it has as many running "
                "ones as max_requests_in_flight_per_env_runner allows. Call EnvRunners "
                "of an algorithm that samples ahead by no other way."
            )
        self._calls[runner] = call
        self._deadlines[runner] = time.monotonic() + self._batch_limit.seconds
        for group_id in new:
            self._groups[group_id].runner = runner
        if weights is not None:
            self._versions[runner] = weights.version

    def _fetch(self, batch: Batch) -> None:
        """Wait for results; take back the groups of lost EnvRunners."""
        tags = [_tag(runner) for runner in self._calls]
        for runner, result in self._runners.fetch_ready_async_reqs(
            tags=tags, timeout_seconds=_POLL_S
        ):
            call = self._calls.pop(runner)
            if result is None:  # it lacks weights that the call does not bring
                self._take_back({task.group_id for task in call.tasks})
                self._weights = self._pack_all()
                self._versions.pop(runner, None)
                continue
            batch.results.append(result)
            for group_id, episodes in result.groups.items():
                if group_id in self._groups:  # not if they are being discarded
                    self._groups[group_id].episodes = episodes
            # Ray may have restarted it between two calls.
            self._retry(runner, result.left, batch)
        for runner in list(self._calls):
            if time.monotonic() > self._deadlines[runner]:
                restart_silent(
                    self._runners,
                    runner,
                    name_of(self._calls[runner]),
                    limit=self._batch_limit,
                    version=self._versions.get(runner),
                )
            # RLlib forgets the calls of EnvRunners that died.
            if not self._runners.num_in_flight_async_reqs(_tag(runner)):
                self._lose(runner, batch)

    def _lose(self, runner: int, batch: Batch) -> None:
        """Send all groups of an EnvRunner again whose call was forgotten."""
        del self._calls[runner]
        self._versions.pop(runner, None)
        self._retry(runner, frozenset(), batch)

    def _retry(self, runner: int, left: frozenset[int], batch: Batch) -> None:
        """Send again what an EnvRunner has lost, unless it was lost too often."""
        held = [
            group_id
            for group_id, group in self._groups.items()
            if group.runner == runner and group.episodes is None
            if group_id not in left
        ]
        if not held:
            return
        lost = [i for i in held if self._groups[i].attempts >= self._max_retries]
        for group_id in lost:
            batch.num_lost += len(self._groups.pop(group_id).tasks)
        self._num_admitted -= len(lost)  # others are admitted instead
        again = [group_id for group_id in held if group_id not in lost]
        for group_id in again:
            self._groups[group_id].attempts += 1
            self._groups[group_id].batch = self._num_batches
        self._take_back(again)
        batch.num_resampled += len(again)
        logger.warning(
            "EnvRunner %s died: %s of its groups are sampled again, %s are lost.",
            runner,
            len(again),
            len(lost),
        )

    def _take_back(self, group_ids: Iterable[int]) -> None:
        for group_id in self._groups.keys() & set(group_ids):
            self._groups[group_id].runner = None


def _tag(runner: int) -> str:
    return f"sample_ahead_{runner}"
