"""Returns from each turn on, without a group baseline: REINFORCE."""

from __future__ import annotations

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice, check_unit_interval


@component("advantage_estimator", "return", paper="REINFORCE, Williams 1992")
def reward_to_go(
    table: TurnTable, *, discount: float = 1.0, baseline: str = "none"
) -> np.ndarray:
    """Use the return from a turn on; REINFORCE++ with the transform ``whiten``.

    Args:
        table: Trajectories; groups may be of one.
        discount: Discount per turn, in [0, 1].
        baseline: "none"; "batch": the mean over all turns.

    Returns:
        Advantages. [M]
    """
    check_unit_interval(discount=discount)
    check_choice("baseline", baseline, ("none", "batch"))
    returns = table.to_go(discount)
    return returns - returns.mean() if baseline == "batch" and len(returns) else returns
