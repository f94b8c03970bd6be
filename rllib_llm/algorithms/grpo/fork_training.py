"""Forked episodes of which each turn is trained once."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.fork_trees import nodes_of, train_nodes_once
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import TurnTable


def mask_repeated_turns(
    episodes: SampledEpisodes, table: TurnTable, advantages: np.ndarray
) -> np.ndarray:
    """Mask turns that another episode trains; return the means over episodes.

    Args:
        episodes: Forked episodes.
        table: Their trajectories.
        advantages: Advantage of each turn. [M]

    Returns:
        Advantage of each turn, the mean over the episodes that contain it. [M]
    """
    masked = [
        turn in data.masked_turns
        for data, trajectory in zip(episodes.data, table.trajectories, strict=True)
        for turn in range(len(trajectory))
    ]
    may_train = table.is_trained[table.owner] & ~np.array(masked, bool)
    means, chosen = train_nodes_once(nodes_of(table), advantages, may_train)
    for data, is_chosen in zip(episodes.data, table.split(chosen), strict=True):
        repeated = np.flatnonzero(~is_chosen).tolist()
        data.masked_turns = frozenset(data.masked_turns) | frozenset(repeated)
    return means
