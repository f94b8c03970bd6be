"""Rewards about the form of what was said."""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory


@component("reward", "environment")
def environment(trajectory: Trajectory) -> list[float]:
    """What the environment paid; counts once by itself, name it to weigh it otherwise.

    Args:
        trajectory: What an agent did.

    Returns:
        Its reward of each turn. [H]
    """
    return trajectory.rewards


@component("reward", "format", paper="RAGEN, arXiv:2504.20073, sec. 3 (-0.1 per turn)")
def format_reward(
    trajectory: Trajectory, *, valid: float = 0.0, invalid: float = -0.1
) -> list[float]:
    """Pay each turn for whether the environment found an action in it.

    Args:
        trajectory: What an agent did.
        valid: For turns with an action.
        invalid: For turns without.

    Returns:
        Reward of each turn. [H]
    """
    return [invalid if is_invalid else valid for is_invalid in trajectory.invalid]
