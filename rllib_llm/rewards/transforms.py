"""Reward transforms, applied to the sum of all rewards.

A transform takes the table with the rewards so far and returns new rewards per turn
[M].
"""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice
from rllib_llm.rewards.format import AGGREGATES
from rllib_llm.rewards.tools import calls

_FLAT = 1e-9  # standard deviations below this are rounding errors


@component("reward_transform", "clip")
def clip_rewards(
    table: TurnTable, *, low: float = -1.0, high: float = 1.0
) -> np.ndarray:
    """Clip each turn's reward to a range.

    Args:
        table: Whole groups.
        low: Minimum reward of a turn.
        high: Maximum reward of a turn, above ``low``.

    Returns:
        Rewards. [M]
    """
    if not low < high:
        raise ValueError(f"low={low} must be below high={high}. Exchange them.")
    return np.clip(table.rewards, low, high)


@component(
    "reward_transform", "discount", paper="common practice: sooner is worth more"
)
def discount_rewards(table: TurnTable, *, discount: float) -> np.ndarray:
    """Multiply each reward by ``discount ** turn``, turns counted from 0.

    Args:
        table: Whole groups.
        discount: In [0, 1].

    Returns:
        Rewards. [M]
    """
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount={discount} must be in [0, 1]. Use e.g. 0.95.")
    return table.rewards * discount**table.turn


@component("reward_transform", "centre", paper="PPR (ReNorm), arXiv:2509.25598")
def centre(
    table: TurnTable,
    *,
    process: float = 0.5,
    outcome: float = 0.5,
    aggregate: str = "mean",
) -> np.ndarray:
    """Subtract a constant from turns that called a tool, and one from the last turn.

    A good step of a failed trajectory thus gets a lower return than alone.

    Args:
        table: Whole groups; ``info["tool"]`` marks turns that called a tool.
        process: Subtracted from turns that called a tool.
        outcome: Subtracted from the last turn.
        aggregate: "mean": divide ``process`` equally among the turns with a tool call,
            to match rewards that are means over them; "sum": subtract it from each, so
            that more tool calls lower the return (or raise it if ``process`` < 0).

    Returns:
        Rewards. [M]
    """
    check_choice("aggregate", aggregate, AGGREGATES)
    called = np.array([c for t in table.trajectories for c, _ in calls(t)], float)
    if aggregate == "mean":
        counts = np.bincount(table.owner, called, len(table.num_turns))
        called = called / np.maximum(counts, 1)[table.owner]
    return table.rewards - process * called - outcome * is_last(table)


@component(
    "reward_transform", "group_normalise", paper="GRPO, arXiv:2402.03300, sec. 4.1"
)
def group_normalise(
    table: TurnTable, *, unit: str = "trajectory", scale: str = "std"
) -> np.ndarray:
    """Standardise the returns, or the rewards of all turns, of an agent's rollouts.

    Args:
        table: Whole groups.
        unit: "trajectory": rewards are scaled and the last one shifted, so that the
            return is its standard score; "turn": each reward is standardised.
        scale: "std": divide by the standard deviation; "none": subtract the mean only.

    Returns:
        Rewards; 0 if all rollouts have the same return. [M]
    """
    if unit not in ("trajectory", "turn") or scale not in ("std", "none"):
        raise ValueError(
            f"unit={unit!r}, scale={scale!r}: unit must be 'trajectory' or 'turn', and "
            "scale 'std' or 'none'. Use unit='trajectory', scale='std'."
        )
    groups = combined_keys(table.task, table.agent)
    if unit == "turn":
        keys = groups[table.owner]
        centred = table.rewards - key_means(table.rewards, keys)[keys]
        return centred / _spread(centred, keys, scale)[keys]
    # Returns are sums of rewards: with the mean subtracted once, in the last turn, the
    # new return is (return - mean) / std.
    means = key_means(table.returns, groups)[groups]
    spread = _spread(table.returns - means, groups, scale)[groups][table.owner]
    return (table.rewards - means[table.owner] * is_last(table)) / spread


def is_last(table: TurnTable) -> np.ndarray:
    """Return which turns are the last of their trajectory. bool [M]"""
    return table.turn + 1 == table.num_turns[table.owner]


def _spread(centred: np.ndarray, keys: np.ndarray, scale: str) -> np.ndarray:
    """Return the standard deviation of each key's numbers; 1 if it is zero."""
    if scale == "none" or not len(keys):
        return np.ones(keys.max(initial=-1) + 1)
    spread = np.sqrt(key_means(centred**2, keys))
    return np.where(spread > _FLAT, spread, 1.0)
