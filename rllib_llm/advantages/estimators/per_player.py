"""Turn advantages centred per player over the batch: MARSHAL."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.role_baselines import per_player_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component("advantage_estimator", "per_player", paper="MARSHAL, arXiv:2510.15414")
def per_player(table: TurnTable, *, normalise: bool = True) -> np.ndarray:
    """Centre rewards per player, sum to the end, centre again, standardise.

    Compares whole batches, not the rollouts of a task: groups may be of one.

    Args:
        table: Trajectories of one game.
        normalise: Whether the last step, standardising over the batch, is applied.

    Returns:
        Advantages. [M]
    """
    owner = table.owner
    return per_player_advantages(
        table.rewards,
        table.episode[owner],
        table.agent[owner],
        # One game: the table holds the trajectories of one environment.
        np.zeros(len(owner), np.int64),
        normalise=normalise,
    )
