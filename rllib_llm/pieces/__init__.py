"""The literature as small pieces, composed in YAML; see docs/pieces.md."""

from rllib_llm.pieces.registry import (
    KINDS,
    PIECES,
    Chosen,
    Piece,
    Spec,
    choose,
    choose_all,
    piece,
)
from rllib_llm.pieces.trajectories import Trajectory, TurnTable

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
