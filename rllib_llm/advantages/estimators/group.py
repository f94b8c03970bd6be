"""Returns relative to the group: GRPO and its relatives, and tasks that give any."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.group_relative import (
    group_advantages,
    zero_variance_groups,
)
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice

GROUP_BY = ("agent", "task", "turn")
UNITS = ("trajectory", "turn")


@component(
    "advantage_estimator",
    "group",
    paper="Shao et al. 2024, arXiv:2402.03300, sec. 4.1.2",
)
def group(
    table: TurnTable,
    *,
    baseline: str = "mean",
    scale: str = "group",
    by: str = "agent",
    discount: float = 1.0,
    unit: str = "trajectory",
) -> np.ndarray:
    """Compare each return with those of the other rollouts of its task.

    Args:
        table: Whole groups.
        baseline: "mean", "leave_one_out" (RLOO), "none", or "greedy": the return of one
            more rollout of the task that is decoded greedily and is not
            trained on (ReMax, Li et al. 2023, arXiv:2310.10505, algorithm 1).
        scale: "group" (GRPO), "none" (Dr. GRPO; needed for "greedy") or "batch" (Lite
            PPO).
        by: Compared returns. "agent": each agent's return with its own in the other
            rollouts (Dr. MAS; with one agent GRPO); "task": those of all agents
            together; "turn": an agent's return from a turn on, with the same turn of
            the other rollouts (AT-GRPO).
        discount: Discount of later turns' rewards, for "turn" (MAGRPO).
        unit: Sample of means and deviations. "turn": a trajectory counts as often as it
            has turns (the code of Dr. MAS, Flow-GRPO and verl's GiGPO).

    Returns:
        Advantages. [M]
    """
    check_choice("by", by, GROUP_BY)
    check_choice("unit", unit, UNITS)
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount={discount} must be in [0, 1].")
    if by != "turn" and discount != 1.0:
        raise ValueError(
            f"discount={discount} has no effect here: whole returns are compared. "
            "Set by='turn', or omit it."
        )
    if baseline == "greedy":
        if (by, scale, unit) != ("agent", "none", "trajectory"):
            raise ValueError(
                f"baseline='greedy' with by={by!r}, scale={scale!r}, unit={unit!r}: "
                "each return is compared with one other, which has neither deviation "
                "nor turns. Set scale='none', and omit by and unit."
            )
        # The greedy rollout is no member of the group, so one rollout per task is
        # enough.
        return (table.returns - table.greedy_returns)[table.owner]
    values, keys, of_turn = compared(table, by, discount)
    if unit == "turn":
        if by == "turn" or baseline == "leave_one_out":
            raise ValueError(
                f"unit='turn' with by={by!r}, baseline={baseline!r}: turns are "
                "compared already, or the others would be turns of the same rollout. "
                "Omit unit."
            )
        values, keys = values[of_turn], keys[of_turn]
        # Values are per turn from here on, so each turn is its own sample.
        of_turn = np.arange(len(of_turn))
    return group_advantages(values, keys, baseline=baseline, scale=scale)[of_turn]


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
