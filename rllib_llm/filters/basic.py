"""Filters on single trajectories."""

from __future__ import annotations

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import StopReason

_OVERLONG = (
    StopReason.MAX_TOKENS_TURN,
    StopReason.MAX_TOKENS_EPISODE,
    StopReason.CONTEXT_OVERFLOW,
)


@component(
    "filter", "overlong", paper="DAPO, arXiv:2503.14476, sec. 3.4", effect="mask"
)
def overlong(table: TurnTable) -> np.ndarray:
    """Leave out what was cut off for its length: its reward says nothing of its end.

    Args:
        table: Whole groups.

    Returns:
        Which trajectories stay. bool [N]
    """
    return np.array([t.stop_reason not in _OVERLONG for t in table.trajectories], bool)


@component("filter", "valid", paper="SimpleTIR, arXiv:2509.02479 (void turns)")
def valid(table: TurnTable, *, most_invalid: float = 0.0) -> np.ndarray:
    """Leave out trajectories in which too many turns held no action.

    Args:
        table: Whole groups.
        most_invalid: Largest share of such turns that stays, in [0, 1].

    Returns:
        Which trajectories stay. bool [N]
    """
    if not 0.0 <= most_invalid <= 1.0:
        raise ValueError(f"most_invalid={most_invalid} must be in [0, 1].")
    share = table.sum_turns(table.invalid.astype(float)) / np.maximum(
        table.num_turns, 1
    )
    return share <= most_invalid
