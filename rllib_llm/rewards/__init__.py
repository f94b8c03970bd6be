"""Rewards of one's own, beside those of the environment.

A reward takes a :class:`~rllib_llm.components.Trajectory` and returns a number, given
to its last turn, or one number per turn; it may be ``async``. Their weighted sum is
added to the environment's rewards. Importing this registers those of the package.
"""

from rllib_llm.rewards import (
    answers,
    efficiency,
    form,
    gate,
    lookup,
    retrieval,
    team,
    tools,
    transforms,
)

__all__ = [
    "answers",
    "efficiency",
    "form",
    "gate",
    "lookup",
    "retrieval",
    "team",
    "tools",
    "transforms",
]
