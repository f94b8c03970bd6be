"""Labels of turns for a process reward model, from forked episodes."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import key_means
from rllib_llm.advantages.fork_trees import replies_of
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice


def process_labels(table: TurnTable, kind: str) -> np.ndarray:
    """Return how often a task was solved after each turn.

    Math-Shepherd (Wang et al. 2024, arXiv:2312.08935, eq. 3-4): a step's soft label is
    the share of the continuations from it that are right, its hard label is 1 if any
    of them is. Here the continuations are the forked episodes that share the turn;
    equal replies at one place are one.

    Args:
        table: Whole groups of one agent.
        kind: "soft" or "hard".

    Returns:
        Labels from 0 to 1. [M]
    """
    check_choice("kind", kind, ("soft", "hard"))
    if not len(table.owner):
        return np.zeros(0)
    _, replies = replies_of(table)
    solved = np.array([t.is_solved for t in table.trajectories], np.float64)
    shares = key_means(solved[table.owner], replies)[replies]
    return (shares > 0).astype(np.float64) if kind == "hard" else shares
