"""Tasks whose rollouts differ, so that comparing them gives advantages."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.group_relative import zero_variance_groups
from rllib_llm.advantages.keys import combined_keys
from rllib_llm.data.turn_table import TurnTable


def compared(
    table: TurnTable, by: str, discount: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the values that are compared, and the groups within which they are.

    Args:
        table: Whole groups.
        by: "agent", "task" or "turn"; see the advantage estimator ``group``.
        discount: Discount of later turns, for "turn".

    Returns:
        Values [K], their groups as integers [K], and of each turn its index [M].
    """
    if by == "turn":
        task, agent = table.task[table.owner], table.agent[table.owner]
        keys = combined_keys(task, agent, table.turn)
        return table.to_go(discount), keys, np.arange(len(table.owner))
    keys = combined_keys(
        *((table.task,) if by == "task" else (table.task, table.agent))
    )
    return table.returns, keys, table.owner


def has_variance(table: TurnTable, *, by: str = "agent") -> np.ndarray:
    """Return the trajectories of tasks whose rollouts differ, as a mask. bool [N]"""
    if not len(table):
        return np.zeros(0, bool)
    values, keys, _ = compared(table, by)
    # With a dtype, because an empty list would have dtype float64.
    zero_variance = np.array(list(zero_variance_groups(values, keys)), keys.dtype)
    has_no_variance = np.isin(keys, zero_variance)
    task = table.task[table.owner] if by == "turn" else table.task
    # Whole tasks are kept or dropped: a baseline needs all rollouts of its group.
    return np.isin(table.task, task[~has_no_variance])
