"""The literature as small pieces, composed in YAML; see docs/components.md."""

from rllib_llm.components.registry import (
    KINDS,
    PIECES,
    Chosen,
    Piece,
    Spec,
    choose,
    choose_all,
    piece,
)
from rllib_llm.data.turn_table import Trajectory, TurnTable

__all__ = [
    "KINDS",
    "PIECES",
    "Chosen",
    "Piece",
    "Spec",
    "Trajectory",
    "TurnTable",
    "choose",
    "choose_all",
    "piece",
]
