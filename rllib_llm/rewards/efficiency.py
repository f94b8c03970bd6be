"""Rewards for few tool calls and tokens, relative to the task's other rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.rewards.tools import num_calls
from rllib_llm.rewards.transforms import is_last


@component(
    "reward_transform", "otc", paper="OTC-PO, Wang et al. 2025, arXiv:2504.14870"
)
def otc(
    table: TurnTable,
    *,
    alpha: float = 1.0,
    smooth: float = 1.0,
    relative: bool = True,
    tools: Sequence[str] | None = None,
) -> np.ndarray:
    """Multiply the rewards of solved trajectories by their tool efficiency.

    With m calls and n the minimum of the task's solved rollouts, the factor is 1 if
    m = n = 0, ``cos(m pi / (2 m + c))`` if n = 0, else ``sin(m pi / (m + n))``, which
    is 1 at m = n. The paper keeps n per question over epochs; here n is that of the
    iteration's rollouts. Unsolved rollouts keep their rewards.

    Args:
        table: Whole groups.
        alpha: Factor of the efficiency.
        smooth: c > 0.
        relative: False sets n = 0 for all, the paper's variant for PPO.
        tools: Names of the tools that count; None means all.

    Returns:
        Rewards. [M]
    """
    if not smooth > 0:
        raise ValueError(f"smooth={smooth} must be > 0. Use e.g. 1.0.")
    made = np.array([num_calls(t, tools) for t in table.trajectories], np.int64)
    solved = np.array([t.is_solved for t in table.trajectories], bool)
    groups = combined_keys(table.task, table.agent)
    # Groups without a solved rollout keep the maximum, which is not used.
    fewest = np.full(groups.max(initial=-1) + 1, np.iinfo(np.int64).max)
    np.minimum.at(fewest, groups[solved], made[solved])
    factors = [
        alpha * tool_efficiency(m, n if relative else 0, smooth) if ok else 1.0
        for m, n, ok in zip(
            made.tolist(), fewest[groups].tolist(), solved.tolist(), strict=True
        )
    ]
    return table.rewards * np.array(factors)[table.owner]


def tool_efficiency(made: int, fewest: int, smooth: float = 1.0) -> float:
    """Return OTC's factor in [0, 1] of ``made`` calls if ``fewest`` were enough."""
    if fewest == 0:
        return math.cos(made * math.pi / (2 * made + smooth)) if made else 1.0
    return math.sin(made * math.pi / (made + fewest))


@component("reward_transform", "optima_cost", paper="Optima, arXiv:2410.08115, eq. 1")
def optima_cost(table: TurnTable, *, weight: float = 0.5) -> np.ndarray:
    """Subtract the tokens relative to the longest rollout of the task.

    The last turn gets ``R - weight * tokens / max tokens``, with the tokens of all
    agents of the episode. The paper's readability term needs the loss of a language
    model and is not included.

    Args:
        table: Whole groups.
        weight: Weight of the tokens, >= 0.

    Returns:
        Rewards. [M]
    """
    if weight < 0:
        raise ValueError(
            f"weight={weight} must be >= 0, because it is subtracted. Drop the sign."
        )
    # Numbers from 0 without gaps, which bincount needs.
    episodes = combined_keys(table.task, table.episode)
    tokens = np.bincount(episodes, table.tokens)[episodes]
    groups = combined_keys(table.task)
    # At least 1, so that rollouts without tokens do not divide by zero.
    longest = np.ones(groups.max(initial=-1) + 1)
    np.maximum.at(longest, groups, tokens)
    cost = weight * tokens / longest[groups]
    return table.rewards - cost[table.owner] * is_last(table)
