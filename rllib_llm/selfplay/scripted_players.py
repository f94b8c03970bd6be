"""Scripted players to measure a policy against."""

from __future__ import annotations

import re
from typing import Any


def any_number(turn: Any) -> str:
    """Say any number of the text: a free cell in the short view of tic-tac-toe.

    Args:
        turn: A ``ScriptedTurn``.
    """
    return str(turn.rng.choice(re.findall(r"\d+", turn.observation)))
