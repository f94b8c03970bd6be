"""Filters by the scores of a scorer that is trained beside the policy."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component(
    "filter", "scorer", paper="RAFT, arXiv:2304.06767, alg. 1 (reward-ranked episodes)"
)
def scorer(table: TurnTable, *, top: float = 0.25) -> np.ndarray:
    """Keep a share of each task's rollouts: those with the best scores.

    The score of a trajectory is the sum of its turns', as of the reward ``scorer``.
    Equal scores keep the earlier rollouts.

    Args:
        table: Whole groups.
        top: Share of the rollouts of each task and agent, in (0, 1]; at least one is
            kept.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    if not 0.0 < top <= 1.0:
        raise ValueError(f"top={top} must be in (0, 1]. Use e.g. 0.25.")
    sums = np.array([sum(t.turn_scores) for t in table.trajectories], np.float64)
    keep = np.zeros(len(table), bool)
    groups = combined_keys(table.task, table.agent)
    rollouts = np.array([t.task.rollout for t in table.trajectories], np.int64)
    for group in np.unique(groups):
        (members,) = np.nonzero(groups == group)
        best = members[np.lexsort((rollouts[members], -sums[members]))]
        keep[best[: max(1, round(top * len(members)))]] = True
    return keep


@component(
    "filter",
    "scored_turns",
    paper="cf. ATLaS, arXiv:2503.02197 (critical turns)",
    effect="turns",
)
def scored_turns(table: TurnTable, *, least: float = 0.0) -> np.ndarray:
    """Keep the turns with a high score.

    Args:
        table: Whole groups.
        least: Least score of a turn that is kept.

    Returns:
        Whether to keep each turn. bool [M]
    """
    scores = [score for t in table.trajectories for score in t.turn_scores]
    return np.array(scores, np.float64) >= least
