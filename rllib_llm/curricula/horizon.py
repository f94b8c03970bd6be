"""Horizon curriculum: a limit on turns that increases during training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rllib_llm.components.registry import component
from rllib_llm.data.types import Task


@component(
    "curriculum", "horizon", paper="ScalingInter-RL, Xi et al. 2025, arXiv:2509.08755"
)
class Horizon:
    """Limit episodes to few turns at first and to more turns later.

    Args:
        turns: Maximum turns of each phase, e.g. ``[6, 13, 20]``; the last phase does
            not end.
        every: Training iterations per phase.
    """

    def __init__(self, *, turns: Sequence[int], every: int = 100):
        if not turns or any(not isinstance(t, int) or t < 1 for t in turns):
            raise ValueError(
                f"turns={turns!r} must be integers >= 1. Use e.g. [6, 13, 20]."
            )
        if not isinstance(every, int) or every < 1:
            raise ValueError(
                f"every={every!r} must be a number of iterations >= 1. Use e.g. 100."
            )
        self.turns, self.every = list(turns), every

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with the limit of the current phase."""
        phase = min(iteration // self.every, len(self.turns) - 1)
        return dataclasses.replace(task, max_turns=self.turns[phase])
