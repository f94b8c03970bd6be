"""Returns relative to the recent groups' returns: SPEAR's baseline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice

STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "median": np.median,
    "mean": np.mean,
}
_MAX_TASKS = 10_000


@component(
    "advantage_estimator", "history", paper="SPEAR, arXiv:2509.22601 (its P50 baseline)"
)
class History:
    """Subtract the median, or mean, of recent groups' means from each return.

    The baseline is read before this batch's groups are added; an agent or task without
    history is compared with this batch. The history is part of the checkpoint.

    Args:
        window: Number of group means that are kept, >= 1.
        statistic: "median" (SPEAR's P50) or "mean" of them.
        of: "agent": of all tasks; "task": of the same instance (its seed) only, for
            recurring tasks. The 10 000 most recent tasks are kept.
    """

    def __init__(
        self, *, window: int = 256, statistic: str = "median", of: str = "agent"
    ):
        check_choice("statistic", statistic, STATISTICS)
        check_choice("of", of, ("agent", "task"))
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"window={window!r} must be a whole number >= 1.")
        self.window, self.of = window, of
        self.statistic = STATISTICS[statistic]
        self.means: dict[tuple[Hashable, ...], deque[float]] = {}

    def __call__(self, table: TurnTable) -> np.ndarray:
        """Return advantages, and add the groups' means to the history. [M]"""
        groups = combined_keys(table.task, table.agent)
        _, first = np.unique(groups, return_index=True)
        fresh: dict[tuple[Hashable, ...], list[float]] = {}
        for i, mean in zip(first, key_means(table.returns, groups), strict=True):
            fresh.setdefault(self._key(table, i), []).append(float(mean))
        means = {key: self.means.get(key) or values for key, values in fresh.items()}
        baselines = {key: float(self.statistic(v)) for key, v in means.items()}
        keys = [self._key(table, i) for i in range(len(table))]
        # Before this batch enters the history: a return must not be part of its own
        # baseline.
        advantages = table.returns - np.array([baselines[key] for key in keys])
        for key, values in fresh.items():
            kept = self.means.pop(key, deque(maxlen=self.window))
            kept.extend(values)
            self.means[key] = kept  # inserted last, so the first key is the oldest
        while len(self.means) > _MAX_TASKS:
            del self.means[next(iter(self.means))]
        return advantages[table.owner]

    def _key(self, table: TurnTable, i: int) -> tuple[Hashable, ...]:
        one = table.trajectories[i]
        return (one.agent_id, one.task.seed) if self.of == "task" else (one.agent_id,)

    def get_state(self) -> list[Any]:
        """Return the groups' means."""
        return [[list(key), list(values)] for key, values in self.means.items()]

    def set_state(self, state: list[Any]) -> None:
        """Restore the groups' means."""
        self.means = {
            tuple(key): deque(values, maxlen=self.window) for key, values in state
        }
