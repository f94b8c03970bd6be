"""Scripted opponents for evaluation."""

from __future__ import annotations

import re
from typing import Any


def any_number(turn: Any) -> str:
    """Return a random number of the observation, e.g. a free cell of tic-tac-toe.

    Args:
        turn: A ``ScriptedTurn``.
    """
    return str(turn.rng.choice(re.findall(r"\d+", turn.observation)))
