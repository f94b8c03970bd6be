"""Threshold curriculum: the next level opens at a success rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.curricula.task_options import check_options, with_options
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task


@component(
    "curriculum", "threshold", paper="MaskSearch, arXiv:2505.20285 (masked spans)"
)
class ThresholdCurriculum:
    """Raise the difficulty once the recent success rate reaches a threshold.

    Args:
        levels: Options of the environment at each level, or lists of options, of which
            each task gets one; the last level does not end.
        threshold: Success rate that opens the next level, in (0, 1].
        window: Number of the level's most recent trajectories to measure, >= 1; fewer
            do not open the next level.
        seed: Seed of the choice within a level, combined with the task's.
    """

    def __init__(
        self,
        *,
        levels: Sequence[Any],
        threshold: float = 0.8,
        window: int = 256,
        seed: int = 0,
    ):
        if not isinstance(levels, list | tuple) or not levels:
            raise ValueError(
                f"levels={levels!r} must be a list of options. Use e.g. "
                "[{size: 3}, {size: 4}]."
            )
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold={threshold} must be in (0, 1]. Use e.g. 0.8.")
        if not isinstance(window, int) or window < 1:
            raise ValueError(
                f"window={window!r} must be a number of episodes >= 1. Use e.g. 256."
            )
        self.levels = [check_options("level", level) for level in levels]
        self.threshold, self.window, self.seed = threshold, window, seed
        self.level = 0
        self._solved: deque[float] = deque(maxlen=window)
        self._given: set[int] = set()

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with options of the current level."""
        choices = self.levels[self.level]
        rng = np.random.default_rng([self.seed, task.seed, task.group_id])
        self._given.add(task.group_id)
        return with_options(task, choices[int(rng.integers(len(choices)))])

    def observe(self, table: TurnTable) -> None:
        """Count successes of the level's tasks; open the next level if they suffice."""
        # A fixed order: the window must not depend on the order of delivery.
        order = np.lexsort((table.agent, table.episode, table.task))
        in_order = (table.trajectories[i] for i in order)
        of_level = [t for t in in_order if t.task.group_id in self._given]
        self._solved.extend(float(t.is_solved) for t in of_level)
        self._given.clear()
        is_top = self.level + 1 == len(self.levels)
        if len(self._solved) < self.window or is_top:
            return
        # The mean is subject to rounding: 0.8 of the window must count as 0.8.
        if float(np.mean(self._solved)) >= self.threshold - 1e-9:
            self.level += 1
            self._solved.clear()  # successes of the easier level

    def all_options(self) -> list[dict[str, Any]]:
        """Return the options of all levels."""
        return [options for level in self.levels for options in level]

    def get_state(self) -> dict[str, Any]:
        """Return the level and the window."""
        return {"level": self.level, "solved": list(self._solved)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self.level = min(int(state["level"]), len(self.levels) - 1)
        self._solved = deque(state["solved"], maxlen=self.window)
