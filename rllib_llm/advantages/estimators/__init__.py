"""Advantage estimators on the driver: one number per turn, from whole groups.

An estimator takes a :class:`~rllib_llm.components.TurnTable` and returns advantages
[M]; the weighted results of several are summed. This import registers the package's
estimators.
"""

from rllib_llm.advantages.estimators import (
    anchor,
    broadcast,
    difficulty,
    forked,
    group,
    hierarchical,
    magrpo,
    maxrl,
    per_player,
    recent_returns,
    role,
    scored,
    to_go,
    turn,
)

__all__ = [
    "anchor",
    "broadcast",
    "difficulty",
    "forked",
    "group",
    "hierarchical",
    "magrpo",
    "maxrl",
    "per_player",
    "recent_returns",
    "role",
    "scored",
    "to_go",
    "turn",
]
