"""Rank correlation of estimated with exact advantages of turns."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.fidelity import rank_correlation
from rllib_llm.data.turn_table import TurnTable


def advantage_fidelity(
    table: TurnTable, advantages: AdvantageEstimators, exact: np.ndarray
) -> float:
    """Return Spearman's rank correlation of estimated and exact advantages.

    It is the credit assignment fidelity of C3 (arXiv:2603.06859), over the trained
    turns. Estimators with state are updated with the table.

    Args:
        table: Whole groups.
        advantages: The estimators to rate.
        exact: The exact advantage of each turn under the policies that played. [M]

    Returns:
        In [-1, 1]; NaN if all estimated advantages are equal.

    Raises:
        ValueError: If ``exact`` has another length, or an entry is not finite.
    """
    exact = np.asarray(exact, np.float64)
    if exact.shape != table.owner.shape:
        raise ValueError(
            f"exact has shape {list(exact.shape)}. It must be [{len(table.owner)}], "
            "one entry per turn of the table."
        )
    is_trained = table.is_trained[table.owner]
    return rank_correlation(advantages.advantages(table)[is_trained], exact[is_trained])
