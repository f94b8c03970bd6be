"""Rewards of one's own, beside those of the environment.

A reward takes a :class:`~rllib_llm.pieces.Trajectory` and returns a number, paid in its
last turn, or one number per turn; it may be ``async``. Their weighted sum is added to
what the environment paid. Importing this registers those of the package.
"""

from rllib_llm.pieces.rewards import (
    answers,
    basic,
    efficiency,
    form,
    gate,
    retrieval,
    team,
    tools,
    transforms,
)

__all__ = [
    "answers",
    "basic",
    "efficiency",
    "form",
    "gate",
    "retrieval",
    "team",
    "tools",
    "transforms",
]
