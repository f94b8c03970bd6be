"""Which tasks can teach anything by comparing their rollouts."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.group_relative import zero_variance_groups
from rllib_llm.advantages.keys import combined_keys
from rllib_llm.data.turn_table import TurnTable


def compared(
    table: TurnTable, by: str, discount: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what rollouts are compared by, and with which.

    Args:
        table: Whole groups.
        by: "agent", "task" or "turn"; see the credit piece ``group``.
        discount: Of later turns, for "turn".

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
    """Return which trajectories belong to a task whose rollouts differ. bool [N]"""
    if not len(table):
        return np.zeros(0, bool)
    values, keys, _ = compared(table, by)
    zero_variance = np.array(list(zero_variance_groups(values, keys)), keys.dtype)
    flat = np.isin(keys, zero_variance)
    task = table.task[table.owner] if by == "turn" else table.task
    return np.isin(table.task, task[~flat])
