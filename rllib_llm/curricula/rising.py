"""Rising curriculum: an option of the environment that grows with the iteration."""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.curricula.task_options import with_options
from rllib_llm.data.types import Task


@component(
    "curriculum", "rising", paper="ZeroSearch, Sun et al. 2025, arXiv:2505.04588"
)
class Rising:
    """Move an option from one value to another, slowly at first.

    In iteration i it is ``start + (base^(i/n) - 1) / (base - 1) (end - start)``, with
    n = ``iterations``, and ``end`` from there on.

    Args:
        option: Name of the option, e.g. "noise".
        start: Value in the first iteration.
        end: Value from iteration n on.
        iterations: n, >= 1.
        base: Growth of the slope, > 1; near 1 it is linear. ZeroSearch: 4.
    """

    def __init__(
        self,
        *,
        option: str,
        start: float,
        end: float,
        iterations: int,
        base: float = 4.0,
    ):
        if not isinstance(option, str) or not option:
            raise ValueError(f"option={option!r} must be a name. Use e.g. 'noise'.")
        if not isinstance(iterations, int) or iterations < 1:
            raise ValueError(
                f"iterations={iterations!r} must be an integer >= 1. Use e.g. 20."
            )
        if not base > 1:
            raise ValueError(f"base={base!r} must be > 1. Use e.g. 4.")
        self.option, self.start, self.end = option, float(start), float(end)
        self.iterations, self.base = iterations, float(base)

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with the option's value in this iteration."""
        return with_options(task, {self.option: self.value(iteration)})

    def all_options(self) -> list[dict[str, float]]:
        """Return the first and the last value, between which all others are."""
        return [{self.option: self.start}, {self.option: self.end}]

    def value(self, iteration: int) -> float:
        """Return the option's value in an iteration, from 0."""
        done = min(iteration / self.iterations, 1.0)
        share = (self.base**done - 1) / (self.base - 1)
        return self.start + share * (self.end - self.start)
