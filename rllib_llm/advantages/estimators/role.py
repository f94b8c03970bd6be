"""Returns relative to the moving average of an agent's returns, for self-play."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllib_llm.advantages.role_baselines import RoleBaselines
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice


@component(
    "advantage_estimator", "role", paper="SPIRAL, Liu et al. 2025, arXiv:2506.24119"
)
class Role:
    """Subtract the moving average of the agent's returns from each return.

    The averages are part of the checkpoint.

    Args:
        decay: Share of an average that remains when a new return is added, in [0, 1).
        scale: "none", or "batch": divide by the standard deviation of the batch.
        game: Name of the game in the averages, if several games share them.
    """

    def __init__(self, *, decay: float = 0.95, scale: str = "none", game: str = ""):
        check_choice("scale", scale, ("none", "batch"))
        self.baselines = RoleBaselines(decay)
        self.scale, self.game = scale, game

    def __call__(self, table: TurnTable) -> np.ndarray:
        """Return advantages; episodes update the averages in the table's order. [M]"""
        agents = [t.agent_id for t in table.trajectories]
        games = [self.game] * len(agents)
        advantages = self.baselines.advantages(table.returns, games, agents)
        if self.scale == "batch" and len(advantages):
            # Not centred: the moving average already is the baseline.
            advantages = advantages / (advantages.std() + 1e-6)
        return advantages[table.owner]

    def get_state(self) -> dict[str, Any]:
        """Return the averages."""
        return self.baselines.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the averages."""
        self.baselines.load_state_dict(state)
