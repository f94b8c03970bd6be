"""Agents that a setting names."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import did_you_mean


def assigned(table: TurnTable, setting: str, name: str) -> np.ndarray:
    """Return which trajectories are those of an agent, or of all of a role. bool [N]

    Args:
        table: Trajectories.
        setting: What the name is called, for the error message.
        name: An agent's, e.g. "solver_0", or its role, "solver".

    Raises:
        ValueError: If nobody is called that.
    """
    agents = [t.agent_id for t in table.trajectories]
    found = np.array([name in (a, a.rpartition("_")[0]) for a in agents], bool)
    if agents and not found.any():
        raise ValueError(
            f"{setting}={name!r} is no agent here. {did_you_mean(str(name), {*agents})}"
        )
    return found
