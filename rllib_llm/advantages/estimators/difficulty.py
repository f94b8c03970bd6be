"""Advantages weighted by the difficulty of their task."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.estimators.outcome import outcomes
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice, check_positive, check_unit_interval

FORMULAS = {
    "hard": lambda p: 1.0 - p,
    "easy": lambda p: p,
    "uncertain": lambda p: 4.0 * p * (1.0 - p),
}


@component("advantage_transform", "weight", paper="F-GRPO, arXiv:2602.06717")
def weigh_by_difficulty(
    table: TurnTable,
    advantages: np.ndarray,
    *,
    formula: str = "hard",
    power: float = 1.0,
    strength: float = 1.0,
    of: str = "success",
) -> np.ndarray:
    """Multiply by ``1 - strength + strength * f(p)^power``, p a group's success rate.

    "hard" with a power is F-GRPO's focal weight; VITAL's DGRPO (arXiv:2508.04416)
    uses the group's accuracy too. "easy" and "uncertain" are this package's.

    Args:
        table: Whole groups.
        advantages: Advantage of each turn. [M]
        formula: f: "hard" ``1 - p``, "easy" ``p``, "uncertain" ``4 p (1 - p)``.
        power: Exponent of f, > 0.
        strength: 0 changes nothing; 1 multiplies by f alone.
        of: Quantity whose mean is p: "success", or "return" where it is in [0, 1].

    Returns:
        Advantages. [M]
    """
    check_choice("formula", formula, FORMULAS)
    check_positive("power", power, "Use e.g. 1.0.")
    check_unit_interval(strength=strength)
    values = outcomes(table, of)
    if not len(values):
        return advantages
    keys = combined_keys(table.task)
    rate = key_means(values, keys)[keys]  # success rate of each trajectory's task [N]
    if rate.max() > 1:
        raise ValueError(
            f"A task's mean return is {rate.max():g}; as a success rate it must be at "
            "most 1. Use of='success'."
        )
    # A linear mix with 1: strength 0 leaves the advantages as they are.
    weight = 1.0 - strength + strength * FORMULAS[formula](rate) ** power
    return advantages * weight[table.owner]
