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
    """Remove trajectories that were cut off at a token limit.

    Their reward does not reflect the policy's end of the episode.

    Args:
        table: Whole groups.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    return np.array([t.stop_reason not in _OVERLONG for t in table.trajectories], bool)


@component("filter", "valid", paper="SimpleTIR, arXiv:2509.02479 (void turns)")
def valid(table: TurnTable, *, most_invalid: float = 0.0) -> np.ndarray:
    """Remove trajectories with too many invalid turns.

    Args:
        table: Whole groups.
        most_invalid: Maximum share of invalid turns, in [0, 1].

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    if not 0.0 <= most_invalid <= 1.0:
        raise ValueError(
            f"most_invalid={most_invalid} must be in [0, 1]. Use e.g. 0.5."
        )
    share = table.sum_turns(table.invalid.astype(float)) / np.maximum(
        table.num_turns, 1
    )
    return share <= most_invalid
