"""Tasks of a rollout: waiting, running, finished and failed ones."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import StopReason, Task
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from rllib_llm.data.places import Place
    from rllib_llm.env_runner.best_paths import BestPaths
    from rllib_llm.env_runner.episode_tree import GroupTrees
    from rllib_llm.types import Episode

logger = logging.getLogger("rllib_llm")


@dataclasses.dataclass(frozen=True)
class GroupsWanted:
    """Condition under which a call that samples ahead returns.

    Attributes:
        count: Least number of complete groups; all, if fewer are left.
        required: Ids of groups that must be among them.
    """

    count: int = 1
    required: frozenset[int] = frozenset()


class TaskQueue:
    """Deals tasks to slots, repeats failed ones and collects the episodes.

    Args:
        tasks: The tasks.
        max_retries: Number of times that a failed task is repeated.
        max_failed_fraction: Share of the tasks that may fail in the end.
        roots: Number of a group's tasks that begin at the prompt; the others wait until
            :meth:`fork` gives them a place. None: all.
        places: Choose the places of a group's later tasks, once the tasks that began
            at the last one have ended. None: its episodes fork.

    Attributes:
        num_tasks: Number of tasks.
        failures: Tasks without an episode, with the last stop reason.
    """

    def __init__(
        self,
        tasks: Sequence[Task] = (),
        max_retries: int = 0,
        max_failed_fraction: float = 0.0,
        roots: int | None = None,
        places: GroupTrees | BestPaths | None = None,
    ) -> None:
        self.num_tasks = 0
        self.failures: list[tuple[Task, str]] = []
        self._max_retries = max_retries
        self._max_failed_fraction = max_failed_fraction
        self._waiting: deque[tuple[int, Task, int]] = deque()
        self._roots, self._places = roots, places
        # Indices of each group's tasks that run; kept only where places are chosen.
        self._running: dict[int, set[int]] = {}
        # Tasks without a place, by the index of the task whose episode may fork them.
        self._reserves: dict[int, list[tuple[int, Task]]] = {}
        self._done: dict[int, Episode] = {}
        self._groups: dict[int, int] = {}  # by index of the task
        self._unfinished: Counter[int] = Counter()  # tasks by group
        self._num_complete = 0  # groups
        self._next_index = 0
        self.add(tasks)

    def add(self, tasks: Sequence[Task]) -> None:
        """Append tasks; their indices continue."""
        roots_of: dict[int, list[int]] = {}
        held: Counter[int] = Counter()  # tasks without a place by group
        for task in tasks:
            index, group = self._next_index, task.group_id
            self._next_index += 1
            self._groups[index] = group
            roots = roots_of.setdefault(group, [])
            if self._roots is None or len(roots) < self._roots:
                roots.append(index)
                if self._places is not None:
                    self._running.setdefault(group, set()).add(index)
                self._waiting.append((index, task, 0))
            else:
                # In turn, so that each root has the same share, whichever is first.
                holder = roots[held[group] % len(roots)]
                self._reserves.setdefault(holder, []).append((index, task))
                held[group] += 1
        self._unfinished.update(task.group_id for task in tasks)
        self.num_tasks += len(tasks)

    @property
    def num_waiting(self) -> int:
        """Number of tasks that no slot has taken yet."""
        return len(self._waiting)

    @property
    def num_done(self) -> int:
        """Number of finished episodes."""
        return len(self._done)

    @property
    def episodes(self) -> list[Episode]:
        """The finished episodes in the order of the tasks."""
        # Task order, not the order in which episodes finished, which depends on timing.
        return [self._done[i] for i in sorted(self._done)]

    @property
    def groups(self) -> frozenset[int]:
        """Ids of the groups that :meth:`pop_complete` has not returned."""
        return frozenset(self._unfinished)

    def take(self) -> tuple[int, Task, int]:
        """Return the next task: its index, itself, and the number of its attempt."""
        return self._waiting.popleft()

    def budget(self, index: int) -> int:
        """Return how many tasks the episode of a task may still fork."""
        return len(self._reserves.get(index, ()))

    def fork(self, index: int, count: int, place: Place) -> None:
        """Let tasks begin at a place of the episode of another task.

        What is left of its budget is dealt to it and to its forks. So a tree depends on
        the paths of its episodes alone, and neither on time nor on other trees.

        Args:
            index: Index of the other task.
            count: Number of tasks, at most its budget.
            place: The place.
        """
        reserve = self._reserves.pop(index)
        forked, left = reserve[:count], reserve[count:]
        holders = [index, *(fork for fork, _ in forked)]
        for number, entry in enumerate(left):
            holder = holders[number % len(holders)]
            self._reserves.setdefault(holder, []).append(entry)
        # In front of others: the keys and values of the place are still cached.
        for fork, task in reversed(forked):
            task = dataclasses.replace(task, place=place)
            self._waiting.appendleft((fork, task, 0))

    def _begin_reserve(self, index: int) -> None:
        """Let the tasks that an episode did not fork begin at the prompt."""
        if self._places is not None:
            self._begin_next(index, self._places)
            return
        for fork, task in self._reserves.pop(index, ()):
            self._waiting.append((fork, task, 0))

    def _begin_next(self, index: int, places: GroupTrees | BestPaths) -> None:
        """Let the next tasks of a group begin, if those that run have ended."""
        group = self._groups[index]
        running, reserve = self._running[group], self._reserves.pop(index, [])
        running.remove(index)
        if running:
            # The next place depends on all of them; the last one to end has the rest.
            self._reserves.setdefault(min(running), []).extend(reserve)
            return
        if not reserve:
            places.end(group)
            del self._running[group]
            return
        reserve.sort(key=lambda entry: entry[0])
        place, count = places.next_place(group)
        begun, left = reserve[:count], reserve[count:]
        self._reserves[begun[0][0]] = left
        running.update(fork for fork, _ in begun)
        for fork, task in reversed(begun):
            task = dataclasses.replace(task, place=place)
            self._waiting.appendleft((fork, task, 0))

    def finish(self, index: int, episode: Episode, recorder: Any = None) -> None:
        """Store the episode of a task.

        Args:
            index: Index of the task.
            episode: Its episode.
            recorder: The episode's recorder, of which places are made.
        """
        self._done[index] = episode
        if self._places is not None:
            self._places.add(self._groups[index], recorder)
        self._begin_reserve(index)
        self._end(self._groups[index])

    def has(self, wanted: GroupsWanted) -> bool:
        """Return whether the groups wanted are complete, or nothing is left to do."""
        if self._num_complete == len(self._unfinished):
            return True
        return self._num_complete >= wanted.count and not any(
            self._unfinished[group] for group in wanted.required
        )

    def _end(self, group: int) -> None:
        self._unfinished[group] -= 1
        self._num_complete += not self._unfinished[group]

    def pop_complete(self) -> tuple[dict[int, list[Episode]], list[tuple[Task, str]]]:
        """Remove complete groups; return their episodes, and failures since then.

        A group is complete when each of its tasks has an episode or has failed for
        good. Episodes of a group come in the order in which its tasks were added.
        """
        complete: dict[int, list[Episode]] = {
            group: [] for group, left in self._unfinished.items() if not left
        }
        for index, group in list(self._groups.items()):
            if group in complete:
                del self._groups[index]
                if index in self._done:
                    complete[group].append(self._done.pop(index))
                self.num_tasks -= 1
        for group in complete:
            del self._unfinished[group]
        self._num_complete = 0
        failures, self.failures = self.failures, []
        return complete, failures

    def drop(
        self, index: int, task: Task, attempt: int, reason: StopReason, why: str
    ) -> None:
        """Repeat a task whose episode was dropped, or list it under ``failures``.

        Args:
            index: Index of the task.
            task: The task.
            attempt: Number of its attempts before this one.
            reason: Stop reason of the episode.
            why: Description of the failure.

        Raises:
            EnvContractError: If more than ``max_failed_fraction`` of the tasks failed.
        """
        logger.warning(
            "Episode of seed %s dropped (%s, attempt %s): %s",
            task.seed,
            reason.value,
            attempt + 1,
            why,
        )
        if attempt < self._max_retries:
            # At the end: a task that fails again must not delay the others.
            self._waiting.append((index, task, attempt + 1))
            return
        self.failures.append((task, reason.value))
        self._begin_reserve(index)
        self._end(task.group_id)
        # At once, not at the end: a broken environment must not use up its retries on
        # every task.
        if len(self.failures) > self._max_failed_fraction * self.num_tasks:
            raise EnvContractError(
                f"{len(self.failures)} of {self.num_tasks} episodes failed even after "
                f"{self._max_retries} retries, more than max_failed_fraction="
                f"{self._max_failed_fraction} allows. Correct the environment (last "
                f"reason: {reason.value}: {why}), or raise max_retries or "
                "max_failed_fraction."
            )
