"""Reward of the policy's own log-probability."""

from __future__ import annotations

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory


@component("reward", "logp")
def logp(trajectory: Trajectory) -> np.ndarray:
    """Return the mean log-probability of the tokens of each turn, when sampled.

    In nats, at the temperature of sampling. With `rollouts.candidate_scores` the reply
    of which the policy is surest counts as the best.

    Returns:
        One reward per turn, <= 0. [H]
    """
    return np.asarray(trajectory.logps, np.float64)
