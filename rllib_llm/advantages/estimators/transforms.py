"""What is done to advantages after they are summed.

A transform takes the table and the advantages [M] and returns new ones [M].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.keys import combined_keys
from rllib_llm.advantages.whitening import whiten
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice, check_unit_interval

SCOPES = ("batch", "group", "agent", "policy")


@component("advantage_transform", "whiten", paper="PAG, arXiv:2506.10406 (per role)")
def whiten_advantages(
    table: TurnTable,
    advantages: np.ndarray,
    *,
    by: str = "batch",
    shift_mean: bool = True,
    unit: str = "turn",
) -> np.ndarray:
    """Standardise over the turns of the batch, or of each group, agent or policy.

    Args:
        table: Whole groups.
        advantages: Of each turn. [M]
        by: "batch"; "group"; "agent" (role or seat); "policy".
        shift_mean: Whether the mean becomes 0; else only the spread changes.
        unit: What counts once in mean and deviation: "turn" or "token"
            (REINFORCE++).

    Returns:
        Standardised advantages. [M]
    """
    check_choice("by", by, SCOPES)
    check_choice("unit", unit, ("turn", "token"))
    of: dict[str, Sequence[Hashable] | np.ndarray] = {
        "batch": np.zeros(len(table), np.int64),
        "group": table.task,
        "agent": table.agent,
        "policy": [t.module_id for t in table.trajectories],
    }
    keys = combined_keys(of[by])[table.owner] if len(table) else table.owner
    found = np.zeros_like(advantages)
    for key in np.unique(keys):
        here = keys == key
        moments = {}
        if unit == "token":
            counted = np.repeat(advantages[here], table.turn_tokens[here])
            std = counted.std(ddof=1) if len(counted) > 1 else 0.0
            moments = {"mean": float(counted.mean()), "std": float(std)}
        found += whiten(advantages, here, shift_mean=shift_mean, **moments)
    return found


@component("advantage_transform", "clip", paper="common practice")
def clip(
    table: TurnTable, advantages: np.ndarray, *, low: float = -5.0, high: float = 5.0
) -> np.ndarray:
    """Bound advantages.

    Args:
        table: Whole groups.
        advantages: Of each turn. [M]
        low: Least one, <= 0: credit must not change its sign.
        high: Largest one, >= 0.

    Returns:
        Bounded advantages. [M]
    """
    if not low <= 0 <= high or low == high:
        raise ValueError(f"low={low}, high={high}: 0 must lie between. Use -5 and 5.")
    return np.clip(advantages, low, high)


@component(
    "advantage_transform",
    "positive_only",
    paper="SPEAR, arXiv:2509.22601; WebRL, arXiv:2411.02337",
)
def positive_only(table: TurnTable, advantages: np.ndarray) -> np.ndarray:
    """Set negative advantages to 0: imitate what went well, punish nothing.

    Args:
        table: Whole groups.
        advantages: Of each turn. [M]

    Returns:
        Advantages >= 0. [M]
    """
    return np.maximum(advantages, 0.0)


@component("advantage_transform", "discount_turns", paper="SPIRAL, arXiv:2506.24119")
def discount_turns(
    table: TurnTable, advantages: np.ndarray, *, discount: float
) -> np.ndarray:
    """Multiply by ``discount ** (turns until the trajectory's last one)``.

    Args:
        table: Whole groups.
        advantages: Of each turn. [M]
        discount: In [0, 1].

    Returns:
        Advantages. [M]
    """
    check_unit_interval(discount=discount)
    left = table.num_turns[table.owner] - 1 - table.turn
    return advantages * float(discount) ** left
