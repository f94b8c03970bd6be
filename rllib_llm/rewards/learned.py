"""Reward of a scorer that is trained beside the policy."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.losses._checks import check_choice
from rllib_llm.schema import PositiveFloat


@component(
    "reward", "scorer", paper="Christiano et al. 2017, arXiv:1706.03741 (section 2.2)"
)
def scorer(
    trajectory: Trajectory,
    *,
    per: Literal["trajectory", "turn"] = "trajectory",
    clip: PositiveFloat | None = None,
) -> np.ndarray | float:
    """Return the scores that the scorer gave before the iteration's update.

    It needs the section ``scorer``, which trains the model.

    Args:
        per: "trajectory": the sum of the turns' scores, in the last turn; with
            ``scorer.pool: last`` that is the score of the whole conversation. "turn":
            each turn's own.
        clip: Bound of each reward's magnitude; None: none.

    Returns:
        One reward, or one per turn. [H]
    """
    check_choice("per", per, ("trajectory", "turn"))
    scores = np.asarray(trajectory.turn_scores, np.float64)
    if per == "trajectory":
        scores = scores.sum()
    return scores if clip is None else scores.clip(-clip, clip)
