"""Curriculum of failed tasks: tasks that no rollout solved are sampled again."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.curricula.task_options import check_options
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task


@component(
    "curriculum",
    "failed",
    paper="DeepTravel, arXiv:2509.21842; STaR, arXiv:2203.14465 (a hint)",
)
class FailedTasks:
    """Sample tasks again that no rollout of their group solved, oldest first.

    Args:
        prob: Probability that a new task is replaced by a waiting one, in (0, 1].
        capacity: Number of waiting tasks, >= 1; the oldest are dropped beyond it.
        repeats: Number of times that an unsolved task is sampled again, >= 1, since
            some tasks cannot be solved at all.
        seed: Seed of the draws, combined with the group's number.
        options: Options that a task gets when it is sampled again, e.g. a hint; None:
            its own alone.
    """

    def __init__(
        self,
        *,
        prob: float = 0.25,
        capacity: int = 1000,
        repeats: int = 3,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ):
        if not 0 < prob <= 1:
            raise ValueError(f"prob={prob!r} must be in (0, 1]. Use e.g. 0.25.")
        for name, value in (("capacity", capacity), ("repeats", repeats)):
            if value < 1:
                raise ValueError(f"{name}={value!r} must be >= 1. Use the default.")
        self.prob, self.capacity = prob, capacity
        self.repeats, self.seed = repeats, seed
        self.options = check_options("options", options)[0] if options else {}
        # Seed and options of a task, and how often it was sampled again.
        self._waiting: deque[tuple[int, dict[str, Any], int]] = deque(maxlen=capacity)
        self._again: dict[int, int] = {}  # of groups of this iteration

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task, or the oldest waiting one in its place."""
        rng = np.random.default_rng([self.seed, task.group_id])
        if not self._waiting or rng.random() >= self.prob:
            return task
        seed, options, repeats = self._waiting.popleft()
        self._again[task.group_id] = repeats + 1
        return dataclasses.replace(task, seed=seed, options={**options, **self.options})

    def observe(self, table: TurnTable) -> None:
        """Queue the tasks that no rollout solved."""
        unsolved: dict[int, Task] = {}
        solved = set()
        for trajectory in table.trajectories:
            unsolved[trajectory.task.group_id] = trajectory.task
            if trajectory.is_solved:
                solved.add(trajectory.task.group_id)
        # Sorted: the queue must not depend on the order of delivery.
        for group_id in sorted(unsolved.keys() - solved):
            task, repeats = unsolved[group_id], self._again.get(group_id, 0)
            if repeats < self.repeats:
                self._waiting.append((task.seed, dict(task.options), repeats))
        self._again.clear()

    def all_options(self) -> list[dict[str, Any]]:
        """Return the options that a task gets when it is sampled again."""
        return [self.options] if self.options else []

    def get_state(self) -> dict[str, Any]:
        """Return the waiting tasks."""
        return {"waiting": [list(entry) for entry in self._waiting]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        entries = ((int(s), dict(o), int(n)) for s, o, n in state["waiting"])
        self._waiting = deque(entries, maxlen=self.capacity)
