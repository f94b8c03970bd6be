"""Bandit curriculum: selects the task options with the largest learning signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.curricula.task_options import check_options, with_options
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task

_MEASURES = ("cv", "variance", "progress")
_RULES = ("ucb", "thompson")


@component(
    "curriculum", "bandit", paper="PAPRIKA, Tajwar et al. 2025, arXiv:2502.17543"
)
class Bandit:
    """Select each task's options with a bandit that maximises the learning signal.

    The signal of an arm is measured per task, over the returns of its rollouts: "cv",
    standard deviation over the absolute mean (PAPRIKA); "variance"; "progress", the
    distance of the mean from the arm's last one. "ucb" takes the arm with the largest
    ``mean + explore sqrt(ln N / n)``; "thompson" draws from a normal distribution of
    that mean and deviation ``explore / sqrt(n)``. Untried arms come first.

    Args:
        arms: Options of the environment, at least two.
        measure: "cv", "variance" or "progress".
        rule: "ucb" or "thompson".
        explore: Weight of the uncertainty, >= 0.
        decay: Weight of the previous iterations' measurements, in (0, 1]; below 1,
            older ones fade as the policy changes.
        seed: Seed of "thompson".
    """

    def __init__(
        self,
        *,
        arms: Sequence[Any],
        measure: str = "cv",
        rule: str = "ucb",
        explore: float = 1.0,
        decay: float = 1.0,
        seed: int = 0,
    ):
        if not isinstance(arms, list | tuple) or len(arms) < 2:
            raise ValueError(
                f"arms={arms!r} must be a list of two or more options. Use e.g. "
                "[{size: 3}, {size: 4}]."
            )
        if measure not in _MEASURES or rule not in _RULES:
            raise ValueError(
                f"measure={measure!r}, rule={rule!r}: measure must be one of "
                f"{', '.join(_MEASURES)}, rule one of {', '.join(_RULES)}. Use "
                "measure='cv', rule='ucb'."
            )
        if explore < 0 or not 0 < decay <= 1:
            raise ValueError(
                f"explore={explore}, decay={decay}: explore must be >= 0, decay in "
                "(0, 1]. Use explore=1.0, decay=1.0."
            )
        self.arms = [options for arm in arms for options in check_options("arm", arm)]
        self.measure, self.rule = measure, rule
        self.explore, self.decay, self.seed = explore, decay, seed
        self.counts = np.zeros(len(self.arms))
        self.sums = np.zeros(len(self.arms))
        self.last = np.zeros(len(self.arms))  # mean return, for "progress"
        self._drawn = 0
        self._given: dict[int, int] = {}

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with the options of the selected arm."""
        arm = self._choose()
        self._given[task.group_id] = arm
        return with_options(task, self.arms[arm])

    def observe(self, table: TurnTable) -> None:
        """Update the arms with the returns of this iteration's tasks."""
        self.counts *= self.decay
        self.sums *= self.decay
        # The arm's mean of earlier iterations, the same for all tasks of this one.
        before = self.last.copy()
        for group_id, arm in sorted(self._given.items()):
            # Sorted: the sum must not depend on the order of delivery.
            returns = np.sort(table.returns[table.task == group_id])
            if not len(returns):  # the whole group failed or was filtered
                continue
            self.counts[arm] += 1
            self.sums[arm] += self._worth(returns, before[arm])
        for arm in set(self._given.values()):
            groups = [g for g, a in self._given.items() if a == arm]
            returns = np.sort(table.returns[np.isin(table.task, groups)])
            if len(returns):
                self.last[arm] = returns.mean()
        self._given.clear()

    def all_options(self) -> list[dict[str, Any]]:
        """Return the arms."""
        return self.arms

    def get_state(self) -> dict[str, Any]:
        """Return the statistics of the arms as checkpoint state."""
        arrays = {k: getattr(self, k).tolist() for k in ("counts", "sums", "last")}
        return {**arrays, "drawn": self._drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        for key in ("counts", "sums", "last"):
            setattr(self, key, np.array(state[key], np.float64))
        self._drawn = int(state["drawn"])

    def _choose(self) -> int:
        """Select an arm, counting tasks without results as tries."""
        # Otherwise all tasks of an iteration would get the same arm.
        pending = np.bincount(list(self._given.values()), minlength=len(self.arms))
        tries = self.counts + pending
        if not tries.all():
            return int(np.argmin(tries))
        # An arm may have pending tasks only, and no results.
        means = self.sums / np.maximum(self.counts, 1e-9)
        if self.rule == "ucb":
            bounds = means + self.explore * np.sqrt(np.log(tries.sum() + 1) / tries)
            return int(np.argmax(bounds))
        self._drawn += 1
        rng = np.random.default_rng([self.seed, self._drawn])
        return int(np.argmax(rng.normal(means, self.explore / np.sqrt(tries))))

    def _worth(self, returns: np.ndarray, before: float) -> float:
        if self.measure == "variance":
            return float(returns.var())
        if self.measure == "progress":
            return float(abs(returns.mean() - before))
        # The coefficient of variation is undefined for a mean of 0.
        size = abs(returns.mean())
        return float(returns.std() / size) if size > 1e-9 else 0.0
