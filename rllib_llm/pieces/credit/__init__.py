"""Credit on the driver: one number per turn, from whole groups.

A credit piece takes a :class:`~rllib_llm.pieces.TurnTable` and returns advantages [M];
several are summed with their weights. Importing this registers those of the package.
"""

from rllib_llm.pieces.credit import (
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
