"""Source of tasks: seeds, groups, and a cursor that checkpoints save."""

from __future__ import annotations

from typing import Any

from rllib_llm.data.types import Task
from rllib_llm.envs.env_options import TASK_NUMBER
from rllib_llm.seeding import stable_seed


class TaskSource:
    """Creates the tasks of groups of rollouts.

    All rollouts of a group share seed and options. Training tasks follow a cursor;
    evaluation tasks are the same held-out tasks every time.

    Args:
        seed: The run's seed.
        group_size: Rollouts per group (G).
        split: ``"train"`` or ``"test"``, passed to the environment.
        options: Reset options for every task.
        first_number: Number of the first task for environments with ``numbered_tasks``,
            which receive it with every reset; None: others.
    """

    def __init__(
        self,
        seed: int,
        group_size: int = 1,
        split: str = "train",
        options: dict[str, Any] | None = None,
        first_number: int | None = None,
    ):
        self.seed = seed
        self.group_size = group_size
        self.split = split
        self.options = dict(options or {})
        self.first_number = first_number
        self.cursor = 0

    def next_groups(self, num_groups: int) -> list[Task]:
        """Return the tasks of the next ``num_groups`` groups, group by group."""
        first, self.cursor = self.cursor, self.cursor + num_groups
        return [
            self._task(group, rollout)
            for group in range(first, first + num_groups)
            for rollout in range(self.group_size)
        ]

    def fixed(self, num_episodes: int, first: int = 0, stride: int = 1) -> list[Task]:
        """Return the same single-rollout tasks ``first, first + stride, ...``."""
        return [self._task(first + i * stride, 0) for i in range(num_episodes)]

    def _task(self, group: int, rollout: int) -> Task:
        options = {**self.options, "split": self.split}
        if self.first_number is not None:
            options[TASK_NUMBER] = self.first_number + group
        return Task(
            group_id=group,
            rollout=rollout,
            # Without the rollout's number: a group plays one task.
            seed=stable_seed(self.seed, self.split, group),
            options=options,
        )

    def get_state(self) -> dict[str, int]:
        """Return the cursor as checkpoint state."""
        return {"cursor": self.cursor}

    def set_state(self, state: dict[str, int]) -> None:
        """Set the cursor to that of ``state``."""
        self.cursor = state["cursor"]
