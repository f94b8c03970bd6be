"""Advantage estimators on the driver: one number per turn, from whole groups.

An estimator takes a :class:`~rllib_llm.components.TurnTable` and returns advantages
[M]; several are summed with their weights. Importing this registers those of the
package.
"""

from rllib_llm.advantages.estimators import (
    anchor,
    broadcast,
    difficulty,
    group,
    hierarchical,
    history,
    magrpo,
    maxrl,
    per_player,
    role,
    to_go,
    turn,
)

__all__ = [
    "anchor",
    "broadcast",
    "difficulty",
    "group",
    "hierarchical",
    "history",
    "magrpo",
    "maxrl",
    "per_player",
    "role",
    "to_go",
    "turn",
]
