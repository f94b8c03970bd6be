"""Rewards that read values of the trajectory: the environment's reward, format."""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory


@component("reward", "environment")
def environment(trajectory: Trajectory) -> list[float]:
    """Return the environment's reward; list it only to change its weight from 1.

    Args:
        trajectory: The agent's trajectory.

    Returns:
        Reward of each turn. [H]
    """
    return trajectory.rewards


@component("reward", "format", paper="RAGEN, arXiv:2504.20073, sec. 3 (-0.1 per turn)")
def format_reward(
    trajectory: Trajectory, *, valid: float = 0.0, invalid: float = -0.1
) -> list[float]:
    """Reward each turn by whether it has a valid action.

    Args:
        trajectory: The agent's trajectory.
        valid: Reward of turns with a valid action.
        invalid: Reward of turns without.

    Returns:
        Reward of each turn. [H]
    """
    return [invalid if is_invalid else valid for is_invalid in trajectory.invalid]
