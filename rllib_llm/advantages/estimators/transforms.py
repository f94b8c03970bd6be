"""Transforms of turn advantages, applied to the sum of the estimators.

A transform takes the table and the advantages [M] and returns new ones [M].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
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
        advantages: Advantage of each turn. [M]
        by: "batch"; "group"; "agent" (or role); "policy".
        shift_mean: Whether the mean becomes 0; otherwise only the deviation changes.
        unit: Sample of the mean and deviation: "turn" or "token"
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
    keys = combined_keys(of[by])[table.owner] if len(table) else table.owner  # [M]
    whitened = np.zeros_like(advantages)
    for key in np.unique(keys):
        here = keys == key
        moments = {}
        if unit == "token":
            # Each turn counts once per token, as in REINFORCE++'s code.
            counted = np.repeat(advantages[here], table.turn_tokens[here])
            std = counted.std(ddof=1) if len(counted) > 1 else 0.0
            moments = {"mean": float(counted.mean()), "std": float(std)}
        whitened += whiten(advantages, here, shift_mean=shift_mean, **moments)
    return whitened


@component("advantage_transform", "clip", paper="common practice")
def clip(
    table: TurnTable, advantages: np.ndarray, *, low: float = -5.0, high: float = 5.0
) -> np.ndarray:
    """Clip advantages to an interval.

    Args:
        table: Whole groups.
        advantages: Advantage of each turn. [M]
        low: Lower bound, <= 0: an advantage must not change its sign.
        high: Upper bound, >= 0.

    Returns:
        Clipped advantages. [M]
    """
    if not low <= 0 <= high or low == high:
        raise ValueError(f"low={low}, high={high}: must enclose 0. Use e.g. -5 and 5.")
    return np.clip(advantages, low, high)


@component(
    "advantage_transform",
    "positive_only",
    paper="SPEAR, arXiv:2509.22601; WebRL, arXiv:2411.02337",
)
def positive_only(table: TurnTable, advantages: np.ndarray) -> np.ndarray:
    """Set negative advantages to 0, so that only good turns are imitated.

    Args:
        table: Whole groups.
        advantages: Advantage of each turn. [M]

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
        advantages: Advantage of each turn. [M]
        discount: In [0, 1].

    Returns:
        Advantages. [M]
    """
    check_unit_interval(discount=discount)
    left = table.num_turns[table.owner] - 1 - table.turn  # [M]
    return advantages * float(discount) ** left
