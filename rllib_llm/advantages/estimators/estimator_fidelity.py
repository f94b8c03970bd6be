"""How well credit orders turns, where the exact advantages are known."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.fidelity import rank_correlation
from rllib_llm.data.turn_table import TurnTable


def advantage_fidelity(
    table: TurnTable, advantages: AdvantageEstimators, exact: np.ndarray
) -> float:
    """Return Spearman's rank correlation of credit with the exact advantages.

    The credit fidelity of C3 (arXiv:2603.06859), over the turns that may be learnt
    from. A credit that remembers something takes the table in.

    Args:
        table: Whole groups.
        advantage_estimator: What is judged.
        exact: The true advantage of each turn under the policies that played. [M]

    Returns:
        In [-1, 1]; NaN if the credit is the same for all turns.

    Raises:
        ValueError: If ``exact`` has another length, or an entry is not finite.
    """
    exact = np.asarray(exact, np.float64)
    if exact.shape != table.owner.shape:
        raise ValueError(
            f"exact has shape {list(exact.shape)}. It must be [{len(table.owner)}], "
            "one entry per turn of the table."
        )
    learnt = table.is_trained[table.owner]
    return rank_correlation(advantages.advantages(table)[learnt], exact[learnt])
