"""Reward relative to the return of the same task under other options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import MissingInfo, Trajectory
from rllib_llm.schema import PositiveInt


@component(
    "reward", "gain", paper="AI-SearchPlanner, arXiv:2508.20368 (gain by search)"
)
class Gain:
    """Subtract the mean return of the task under other options, in the last turn.

    Each task of an iteration is played again under these options, e.g. without a tool,
    by the same policy. These rollouts are not trained on. Beside ``environment`` the
    return is what the agent gains over them. It is the same number for all rollouts of
    a task, so advantages within a group do not change; use it with a critic, or in
    comparisons between tasks.

    Args:
        options: Options of the environment, e.g. ``{tool: false}``.
        rollouts: Rollouts of each task under them, >= 1.
    """

    def __init__(
        self, *, options: Mapping[str, Any], rollouts: PositiveInt = 1
    ) -> None:
        if not options:
            raise ValueError(
                "options={} would play the same task again. Name the options of the "
                "environment that differ, e.g. {tool: false}."
            )
        self.baseline_options, self.rollouts = dict(options), rollouts
        self.key = json.dumps(self.baseline_options, sort_keys=True)

    def __call__(self, trajectory: Trajectory) -> float:
        """Return minus the mean return of the baseline's rollouts."""
        if self.key not in trajectory.baselines:
            raise MissingInfo(
                f"The reward 'gain' compares with rollouts under {self.key}, and this "
                "episode has none. List it in rollouts.rewards itself, not inside "
                "another component; greedy and other extra rollouts have none."
            )
        return -trajectory.baselines[self.key]
