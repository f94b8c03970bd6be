"""Rewards for using tools.

``info["tool"]`` names the tool that a turn called (None: none), ``info["tool_error"]``
says whether the call failed.
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
    """Pay calls of tools that work, and those that fail; negative numbers are costs.

    Args:
        trajectory: What an agent did.
        per_call: For each call without an error.
        per_error: For each with one.
        cap: Bound of the sum over the turns so far, on both sides; None: none.
        tools: Names of those that count; None: all.
        only_solved: Pay nothing where the task was not solved.

    Returns:
        Reward of each turn. [H]
    """
    if cap is not None and not cap > 0:
        raise ValueError(f"cap={cap} must be > 0, or None for no bound.")
    if isinstance(tools, str):
        raise ValueError(f"tools={tools!r} must be a list of names, e.g. [{tools}].")
    paid = [
        0.0 if not counts else (per_error if failed else per_call)
        for counts, failed in calls(trajectory, tools)
    ]
    if only_solved and not trajectory.is_solved:
        return [0.0] * len(paid)
    sums = np.cumsum(paid)
    sums = sums if cap is None else np.clip(sums, -cap, cap)
    return np.diff(sums, prepend=0.0).tolist()


@component("reward", "tool_cost")
def tool_cost(trajectory: Trajectory) -> list[float]:
    """Charge the costs of the tools called.

    Args:
        trajectory: What an agent did; ``info["tool_cost"]`` is what a turn cost.

    Returns:
        Reward of each turn, <= 0 where costs are >= 0. [H]
    """
    return [-float(cost) for cost in trajectory.info_per_turn("tool_cost", 0.0)]


def calls(
    trajectory: Trajectory, tools: Sequence[str] | None = None
) -> list[tuple[bool, bool]]:
    """Return for each turn whether it called a tool that counts, and in vain. [H]"""
    named = trajectory.info_per_turn("tool", None)
    failed = [bool(info.get("tool_error")) for info in trajectory.infos]
    return [
        (name is not None and (tools is None or name in tools), error)
        for name, error in zip(named, failed, strict=True)
    ]


def num_calls(trajectory: Trajectory, tools: Sequence[str] | None = None) -> int:
    """Return how many turns called a tool that counts."""
    return sum(counts for counts, _ in calls(trajectory, tools))
