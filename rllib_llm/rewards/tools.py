"""Rewards for tool calls.

``info["tool"]`` is the name of the tool that a turn called, or None;
``info["tool_error"]`` is true if the call failed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory


@component(
    "reward", "tool_use", paper="R1-Searcher, arXiv:2503.05592; SPEAR, 2509.22601"
)
def tool_use(
    trajectory: Trajectory,
    *,
    per_call: float = 0.1,
    per_error: float = 0.0,
    cap: float | None = None,
    tools: Sequence[str] | None = None,
    only_solved: bool = False,
) -> list[float]:
    """Reward successful and failed tool calls; negative numbers are costs.

    Args:
        trajectory: The agent's trajectory.
        per_call: Reward of each call without an error.
        per_error: Reward of each call with an error.
        cap: Bound on the absolute sum over the turns so far; None means no bound.
        tools: Names of the tools that count; None means all.
        only_solved: Whether calls in unsolved trajectories get no reward.

    Returns:
        Reward of each turn. [H]
    """
    if cap is not None and not cap > 0:
        raise ValueError(f"cap={cap} must be > 0. Use None for no bound.")
    if isinstance(tools, str):
        raise ValueError(f"tools={tools!r} must be a list of names. Use [{tools}].")
    rewards = [
        0.0 if not counts else (per_error if failed else per_call)
        for counts, failed in calls(trajectory, tools)
    ]
    if only_solved and not trajectory.is_solved:
        return [0.0] * len(rewards)
    # The cap bounds the running sum, so later calls of the other sign still count.
    sums = np.cumsum(rewards)
    sums = sums if cap is None else np.clip(sums, -cap, cap)
    return np.diff(sums, prepend=0.0).tolist()


@component("reward", "tool_cost")
def tool_cost(trajectory: Trajectory) -> list[float]:
    """Subtract the costs of the tools called.

    Args:
        trajectory: The agent's trajectory; ``info["tool_cost"]`` is a turn's cost.

    Returns:
        Reward of each turn, <= 0 for costs >= 0. [H]
    """
    return [-float(cost) for cost in trajectory.info_per_turn("tool_cost", 0.0)]


def calls(
    trajectory: Trajectory, tools: Sequence[str] | None = None
) -> list[tuple[bool, bool]]:
    """Return for each turn whether it called a listed tool, and whether it failed."""
    named = trajectory.info_per_turn("tool", None)
    failed = [bool(info.get("tool_error")) for info in trajectory.infos]
    return [
        (name is not None and (tools is None or name in tools), error)
        for name, error in zip(named, failed, strict=True)
    ]


def num_calls(trajectory: Trajectory, tools: Sequence[str] | None = None) -> int:
    """Return the number of turns that called a listed tool."""
    return sum(counts for counts, _ in calls(trajectory, tools))
