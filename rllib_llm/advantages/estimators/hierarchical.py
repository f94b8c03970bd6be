"""Solvers compared within an episode, proposers across episodes: hierarchical GRPO."""

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
    """Compare proposers across rollouts, and an episode's solvers with each other.

    An episode is one proposal with all its solvers. The only solver of an episode has
    no comparison and gets 0.

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
    advantages = group_advantages(table.returns, keys, baseline=baseline, scale=scale)
    return advantages[table.owner]
