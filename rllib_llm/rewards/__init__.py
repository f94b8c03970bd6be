"""Reward functions, in addition to the environment's rewards.

A reward function takes a :class:`~rllib_llm.components.Trajectory` and returns one
number for its last turn, or one number per turn; it may be ``async``. An object with a
method ``of_all`` gets all trajectories of an iteration at once. The weighted sum is
added to the environment's rewards. Importing this package registers its functions.
"""

from rllib_llm.rewards import (
    answers,
    asked,
    efficiency,
    format,
    gain,
    gate,
    learned,
    likelihood,
    lookup,
    retrieval,
    scored,
    team_transforms,
    tools,
    transforms,
)

__all__ = [
    "answers",
    "asked",
    "efficiency",
    "format",
    "gain",
    "gate",
    "learned",
    "likelihood",
    "lookup",
    "retrieval",
    "scored",
    "team_transforms",
    "tools",
    "transforms",
]
