"""Filters on whole groups."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable

_RULES = ("share", "mass", "above")


@component("filter", "variance", paper="StarPO-S, RAGEN, arXiv:2504.20073, sec. 4")
def variance(
    table: TurnTable, *, by: str = "share", value: float = 0.25, zero: bool = True
) -> np.ndarray:
    """Keep the tasks with the largest standard deviation of their rollouts' returns.

    Args:
        table: Whole groups. A task's deviation is the mean over its agents.
        by: "share": the top ``value`` of the tasks, at least one; "mass": the fewest
            tasks with ``value`` of the sum of deviations; "above": tasks above
            ``value``.
        value: In (0, 1]; >= 0 for "above".
        zero: Whether tasks with a deviation of zero may be kept.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    if by not in _RULES:
        raise ValueError(
            f"by={by!r} must be one of {', '.join(_RULES)}. Use by='share'."
        )
    if not (value >= 0 if by == "above" else 0 < value <= 1):
        allowed = ">= 0" if by == "above" else "in (0, 1]"
        raise ValueError(
            f"value={value} must be {allowed} with by={by!r}. Use e.g. 0.25."
        )
    tasks = combined_keys(table.task)
    spread = deviations(table)
    if by == "above":
        kept = spread > value
    else:
        order = np.argsort(-spread, kind="stable")
        if by == "share":
            # The product may be rounded up (0.55 * 100 > 55), which would keep one
            # more.
            count = max(1, int(np.ceil(value * len(spread) - 1e-9)))
        else:
            # Tasks are added until their sum of deviations reaches the share.
            held = np.cumsum(spread[order])
            count = 1 + int(np.sum(held < (value - 1e-9) * spread.sum()))
        kept = np.isin(np.arange(len(spread)), order[:count])
    if not zero:
        kept &= spread > 0
    return kept[tasks]


def deviations(table: TurnTable) -> np.ndarray:
    """Return the standard deviation of each task's returns, tasks in order."""
    if not len(table):
        return np.zeros(0)
    agents = combined_keys(table.task, table.agent)
    # Per agent, because agents of one task may have different rewards.
    centred = table.returns - key_means(table.returns, agents)[agents]
    squares = key_means(centred**2, agents)
    task_of_agent = np.zeros(len(squares), np.int64)
    task_of_agent[agents] = combined_keys(table.task)
    return key_means(np.sqrt(squares), task_of_agent)
