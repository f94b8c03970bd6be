"""Reward transforms between the agents of an episode, from rewards/allocation.py.

A message is one turn of one agent. A round is one step of the environment; in MAPoRL,
whose agents may act one after the other, an agent's n-th turn is its round n.
"""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.rewards.allocation import (
    allocate_rewards,
    influence_rewards,
    persuasion_bonuses,
    shaped_rewards,
)


@component("reward_transform", "share", paper="AReaL-MARFT; MAGRPO, arXiv:2508.04652")
def share(
    table: TurnTable, *, team_weight: float = 1.0, of: str = "round"
) -> np.ndarray:
    """Mix each message's reward with the mean of its round or episode.

    Args:
        table: Whole episodes.
        team_weight: Weight of the mean, in [0, 1]; 1 gives all the same reward.
        of: "round": the agents' messages of one step; "episode": all messages.

    Returns:
        Rewards. [M]
    """
    if of not in ("round", "episode"):
        raise ValueError(f"of={of!r} must be 'round' or 'episode'. Use 'round'.")
    episodes = table.episode[table.owner]
    # A round is an environment step: its messages were written without reading each
    # other.
    sets = episodes if of == "episode" else combined_keys(episodes, table.step)
    return allocate_rewards(table.rewards, sets, "shared", team_weight=team_weight)


@component("reward_transform", "marti", paper="MARTI, Zhang et al. 2025 (TsinghuaC3I)")
def marti(
    table: TurnTable, *, shaping: str = "margin", alpha: float = 0.5, beta: float = 0.5
) -> np.ndarray:
    """Shape rewards by the mean reward Q of all earlier messages of the episode.

    ``margin``: ``R + alpha (R - Q)``; ``quality``: ``R + alpha (Q R - (1-Q) (1-R))``,
    for rewards in [0, 1]. ``beta`` adds its multiple of the last round's mean reward.

    Args:
        table: Whole episodes with one reward per message.
        shaping: "margin" or "quality".
        alpha: Weight of the shaping, >= 0.
        beta: Weight of the outcome, >= 0.

    Returns:
        Rewards. [M]
    """
    episodes = table.episode[table.owner]
    return shaped_rewards(
        table.rewards, episodes, table.step, shaping=shaping, alpha=alpha, beta=beta
    )


@component(
    "reward_transform", "maporl", paper="MAPoRL, Park et al. 2025, arXiv:2502.18439"
)
def maporl(
    table: TurnTable,
    *,
    discount: float = 0.9,
    persuaded: float = 0.0,
    opposed: float = 0.0,
    contrary: float = 0.0,
    leading: float = 0.0,
) -> np.ndarray:
    """Score each answer with its influence on later rounds and persuasion bonuses.

    Args:
        table: Whole episodes with one reward per message; above 0.5 means correct.
        discount: Weight of the next round, in [0, 1].
        persuaded: alpha_0, for a change to the side of the other agents.
        opposed: alpha_1, for a change to the opposite side.
        contrary: alpha_2, for other agents who leave the side of this answer.
        leading: alpha_3, for other agents who adopt it.

    Returns:
        Rewards. [M]
    """
    episodes, agents = table.episode[table.owner], table.agent[table.owner]
    scores = influence_rewards(table.rewards, episodes, table.turn, discount=discount)
    # From the verifier's rewards, not from the scores, which mix in later rounds.
    bonuses = persuasion_bonuses(
        table.rewards,
        episodes,
        table.turn,
        agents,
        persuaded=persuaded,
        opposed=opposed,
        contrary=contrary,
        leading=leading,
    )
    return scores + bonuses
