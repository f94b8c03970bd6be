"""Tasks of one call of ``Rollout.run``: waiting, finished and failed ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rllib_llm.data.types import StopReason, Task
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from rllib_llm.types import Episode

logger = logging.getLogger("rllib_llm")


class TaskQueue:
    """Deals tasks to slots, repeats failed ones and collects the episodes.

    Args:
        tasks: The tasks.
        max_retries: Number of times that a failed task is repeated.
        max_failed_fraction: Share of the tasks that may fail in the end.

    Attributes:
        num_tasks: Number of tasks.
        failures: Tasks without an episode, with the last stop reason.
    """

    def __init__(
        self,
        tasks: Sequence[Task] = (),
        max_retries: int = 0,
        max_failed_fraction: float = 0.0,
    ) -> None:
        self.num_tasks = len(tasks)
        self.failures: list[tuple[Task, str]] = []
        self._max_retries = max_retries
        self._max_failed_fraction = max_failed_fraction
        self._waiting = deque((i, task, 0) for i, task in enumerate(tasks))
        self._done: dict[int, Episode] = {}

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

    def take(self) -> tuple[int, Task, int]:
        """Return the next task: its index, itself, and the number of its attempt."""
        return self._waiting.popleft()

    def finish(self, index: int, episode: Episode) -> None:
        """Store the episode of a task."""
        self._done[index] = episode

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
