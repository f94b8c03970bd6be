"""How much turns repeat themselves, earlier turns, and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

N = 4  # tokens of an n-gram
# Odd, so that each n-gram of token ids keeps a hash of its own as good as always.
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5],
    np.uint64,
)
_NONE = np.zeros(0, np.uint64)

REPEAT_IN_TURN = "repeat_in_turn_frac"
REPEAT_OF_TURNS = "repeat_of_turns_frac"
COPIED_PROMPT = "copied_prompt_frac"


def repetition(turns: Sequence[Any]) -> dict[str, list[float]]:
    """Return shares of n-grams that are repeated, a value per turn.

    Args:
        turns: An agent's turns of an episode, in order. Those with fewer than ``N``
            tokens have no values.

    Returns:
        ``repeat_in_turn_frac``: n-grams of a turn that stood in it before.
        ``repeat_of_turns_frac``: n-grams that stood in an earlier turn of the agent;
        the first turn has none.
        ``copied_prompt_frac``: n-grams that stand in what the turn's prompt added.
    """
    found: dict[str, list[float]] = {
        REPEAT_IN_TURN: [],
        REPEAT_OF_TURNS: [],
        COPIED_PROMPT: [],
    }
    earlier = _NONE
    for index, turn in enumerate(turns):
        grams = _ngrams(turn.action_ids)
        if not len(grams):
            continue
        unique = np.unique(grams)
        found[REPEAT_IN_TURN].append(1.0 - len(unique) / len(grams))
        if index:
            found[REPEAT_OF_TURNS].append(float(np.isin(grams, earlier).mean()))
        read = _ngrams(turn.prompt_ids)
        found[COPIED_PROMPT].append(float(np.isin(grams, read).mean()))
        earlier = np.union1d(earlier, unique)
    return found


def _ngrams(ids: Any) -> np.ndarray:
    """Return a hash of every n-gram. [len(ids) - N + 1]"""
    ids = np.asarray(ids).astype(np.uint64)
    count = len(ids) - N + 1
    if count < 1:
        return _NONE
    grams = np.zeros(count, np.uint64)
    for place, factor in enumerate(_FACTORS):
        grams += (ids[place : place + count] + np.uint64(1)) * factor  # wraps around
    return grams
