"""The leader's advantage for all agents: MATPO, Flow-GRPO, M-GRPO's main agent."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.estimators.agent_positions import assigned
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.multi_agent_groups import broadcast_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component("advantage_estimator", "broadcast", paper="MATPO, arXiv:2510.04678")
def broadcast(
    table: TurnTable, *, leader: str, baseline: str = "mean", scale: str = "group"
) -> np.ndarray:
    """Assign all agents' turns the leader's return relative to its other rollouts.

    Other agents' returns do not count. In an episode without a turn of the leader,
    every advantage is 0.

    Args:
        table: Whole groups.
        leader: The agent, e.g. "planner_0" or "planner"; one in each episode.
        baseline: As in ``group``.
        scale: As in ``group``.

    Returns:
        Advantages. [M]
    """
    leads = assigned(table, "leader", leader)
    episodes, counts = np.unique(table.episode[leads], return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"leader={leader!r} names {counts.max()} agents of one episode. Name one, "
            "with its number."
        )
    advantages = group_advantages(
        table.returns[leads],
        combined_keys(table.task[leads]),
        baseline=baseline,
        scale=scale,
    )
    led = np.isin(table.episode, episodes)  # [N]
    # 0, not NaN, without a leader: such an episode gives no signal.
    out = np.zeros(len(table))
    out[led] = broadcast_advantages(
        advantages, table.episode[leads], table.episode[led]
    )
    return out[table.owner]
