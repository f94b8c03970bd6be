"""Returns relative to the group, with rare successes weighted up: MaxRL."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.estimators.outcome import outcomes
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable


@component(
    "advantage_estimator", "maxrl", paper="MaxRL, Tajwar et al. 2026, arXiv:2602.02710"
)
def maxrl(table: TurnTable, *, of: str = "return") -> np.ndarray:
    """Compute ``(R - mean) / mean`` of an agent's rollouts of a task.

    It is 0 where no rollout succeeds.

    For rewards of 0 and 1 its expectation is the gradient of the log-probability of
    success (instead of the probability), up to an order that grows with the group.

    Args:
        table: Whole groups.
        of: "return", which must not be negative, or "success".

    Returns:
        Advantages. [M]
    """
    values = outcomes(table, of)
    if not len(values):
        return np.zeros(0)
    keys = combined_keys(table.task, table.agent)
    means = key_means(values, keys)[keys]
    advantages = np.zeros_like(values)
    # `where` avoids 0 / 0: without a success the numerator is 0, too.
    np.divide(group_advantages(values, keys), means, out=advantages, where=means > 0)
    return advantages[table.owner]
