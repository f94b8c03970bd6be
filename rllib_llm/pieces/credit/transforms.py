"""What is done to advantages after they are summed.

A transform takes the table and the advantages [M] and returns new ones [M].
"""

from __future__ import annotations

import numpy as np

from rllib_llm.objectives._checks import check_choice
from rllib_llm.objectives.advantages import whiten
from rllib_llm.objectives.keys import joint_keys
from rllib_llm.pieces.registry import piece
from rllib_llm.pieces.trajectories import TurnTable

SCOPES = ("batch", "group", "agent", "policy")


@piece("credit_transform", "whiten", paper="PAG, arXiv:2506.10406 (per role)")
def whiten_credit(
    table: TurnTable,
    advantages: np.ndarray,
    *,
    by: str = "batch",
    shift_mean: bool = True,
) -> np.ndarray:
    """Standardise over the turns of the batch, or of each group, agent or policy.

    Args:
        table: Whole groups.
        advantages: Of each turn. [M]
        by: "batch"; "group"; "agent" (role or seat); "policy".
        shift_mean: Whether the mean becomes 0; else only the spread changes.

    Returns:
        Standardised advantages. [M]
    """
    check_choice("by", by, SCOPES)
    of = {
        "batch": np.zeros(len(table), np.int64),
        "group": table.task,
        "agent": table.agent,
        "policy": [t.module_id for t in table.trajectories],
    }[by]
    keys = joint_keys(of)[table.owner] if len(table) else table.owner
    found = np.zeros_like(advantages)
    for key in np.unique(keys):
        found += whiten(advantages, keys == key, shift_mean=shift_mean)
    return found
