"""Separate advantages of early turns and of the outcome: MT-GRPO."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component(
    "advantage_estimator", "turn", paper="MT-GRPO, Zeng et al. 2025, arXiv:2505.11821"
)
def turn(
    table: TurnTable, *, boundary: int, coef: float = 1.0, scale: str = "group"
) -> np.ndarray:
    """Compare early turns by their own rewards, and all turns by the outcome.

    The rewards of the first ``boundary`` turns and the later ones are compared with the
    other rollouts separately: early turns get ``A_outcome + coef * A_early``, later
    ones ``A_outcome``. A rollout that ended within the boundary has no outcome; its
    turns get the advantage of its whole return. The boundary is a number of turns, so
    turns without a reward count too.

    Args:
        table: Whole groups.
        boundary: Number of early turns, >= 1.
        coef: Factor of the early turns' advantage.
        scale: "group", "none" or "batch", as in ``group``.

    Returns:
        Advantages. [M]
    """
    if isinstance(boundary, bool) or not isinstance(boundary, int) or boundary < 1:
        raise ValueError(f"boundary={boundary!r} must be a whole number >= 1.")
    is_early = table.turn < boundary
    early = table.sum_turns(np.where(is_early, table.rewards, 0.0))  # [N]
    keys = combined_keys(table.task, table.agent)
    of_early, of_outcome, of_both = (
        group_advantages(values, keys, scale=scale)[table.owner]
        for values in (early, table.returns - early, table.returns)
    )
    # A rollout within the boundary has no outcome; an outcome of 0 would punish it.
    got_past = (table.num_turns > boundary)[table.owner]
    return np.where(got_past, of_outcome + coef * is_early * of_early, of_both)
