"""Scripted opponents for evaluation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllib_llm.env_runner.scripted_policies import ScriptedTurn


def any_number(turn: ScriptedTurn) -> str:
    """Return a random number of the observation, e.g. a free cell of tic-tac-toe.

    Args:
        turn: A ``ScriptedTurn``.
    """
    return str(turn.rng.choice(re.findall(r"\d+", turn.observation)))
