"""Reward of an assistant's answers."""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory


@component(
    "reward",
    "asked",
    paper="Zheng et al. 2023, arXiv:2306.05685 (language models as judges)",
)
def asked(trajectory: Trajectory, *, of: str) -> list[float] | float:
    """Return the values of an assistant's answers.

    Args:
        trajectory: The agent's trajectory.
        of: Name of the assistant in ``rollouts.assistants``; its setting ``per`` says
            whether it is asked about the trajectory or about each turn.

    Returns:
        One reward, or one per turn. [H]
    """
    values = trajectory.answers_of(of)
    return values if len(values) == len(trajectory) else values[0]
