"""Trajectories of the agents that a setting names."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import did_you_mean


def assigned(table: TurnTable, setting: str, name: str) -> np.ndarray:
    """Return the mask of the trajectories of an agent, or of a role's agents. bool [N]

    Args:
        table: Trajectories.
        setting: Name of the setting, for the error message.
        name: An agent, e.g. "solver_0", or a role, "solver".

    Raises:
        ValueError: If no agent has that name.
    """
    agents = [t.agent_id for t in table.trajectories]
    # "solver_0" is agent 0 of the role "solver" (PettingZoo's naming).
    is_named = np.array([name in (a, a.rpartition("_")[0]) for a in agents], bool)
    if agents and not is_named.any():
        raise ValueError(
            f"{setting}={name!r} names no agent. {did_you_mean(str(name), {*agents})}"
        )
    return is_named
