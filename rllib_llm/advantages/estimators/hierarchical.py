"""Solvers within an episode, proposers across episodes: hierarchical GRPO."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.estimators.agent_positions import assigned
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.multi_agent_groups import hierarchical_keys
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component("advantage_estimator", "hierarchical", paper="prime-rl, hierarchical_grpo")
def hierarchical(
    table: TurnTable, *, proposer: str, baseline: str = "mean", scale: str = "group"
) -> np.ndarray:
    """A proposer relative to its other rollouts, solvers to each other in an episode.

    An episode is one proposal and all who work on it. A solver that is alone in its
    episode has nobody to be compared with and gets 0.

    Args:
        table: Whole groups.
        proposer: The agent that proposes, e.g. "proposer_0" or "proposer".
        baseline: As in ``group``.
        scale: As in ``group``.

    Returns:
        Advantages. [M]
    """
    proposes = assigned(table, "proposer", proposer)
    keys = hierarchical_keys(table.task, table.episode, proposes)
    found = group_advantages(table.returns, keys, baseline=baseline, scale=scale)
    return found[table.owner]
