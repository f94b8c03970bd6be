"""Filter by an assistant's answers."""

from __future__ import annotations

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component(
    "filter",
    "asked",
    paper="cf. ATLaS, arXiv:2503.02197, and EPO, arXiv:2502.12486 (turns that a judge "
    "selects)",
    effect="turns",
)
def asked(table: TurnTable, *, of: str, least: float = 0.5) -> np.ndarray:
    """Keep the turns about which an assistant's answer has a high value.

    Args:
        table: Whole groups.
        of: Name of the assistant in ``rollouts.assistants``; if it is asked about
            trajectories, its answer counts for all turns.
        least: Least value of a turn that is kept.

    Returns:
        Whether to keep each turn. bool [M]
    """
    values: list[float] = []
    for trajectory in table.trajectories:
        answers, turns = trajectory.answers_of(of), len(trajectory)
        values += answers if len(answers) == turns else answers * turns
    return np.array(values, np.float64) >= least
