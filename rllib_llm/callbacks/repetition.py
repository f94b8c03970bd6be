"""Metrics of repetition: within a turn, of earlier turns, and of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

N = 4  # tokens of an n-gram
# Odd factors are invertible modulo 2**64, which makes collisions of n-grams unlikely.
_FACTORS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5],
    np.uint64,
)
_NONE = np.zeros(0, np.uint64)

REPEAT_IN_TURN = "repeat_in_turn_frac"
REPEAT_OF_TURNS = "repeat_of_turns_frac"
COPIED_PROMPT = "copied_prompt_frac"


def repetition(turns: Sequence[Any]) -> dict[str, list[float]]:
    """Return the shares of repeated n-grams, one value per turn.

    Args:
        turns: An agent's turns of an episode, in order. Turns with fewer than ``N``
            tokens do not have values.

    Returns:
        ``repeat_in_turn_frac``: n-grams that occur earlier in the same turn.
        ``repeat_of_turns_frac``: n-grams that occur in earlier turns of the agent,
        without a value for the first turn.
        ``copied_prompt_frac``: n-grams that occur in the tokens added by the prompt.
    """
    shares: dict[str, list[float]] = {
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
        shares[REPEAT_IN_TURN].append(1.0 - len(unique) / len(grams))
        if index:
            shares[REPEAT_OF_TURNS].append(float(np.isin(grams, earlier).mean()))
        prompt = _ngrams(turn.prompt_ids)
        shares[COPIED_PROMPT].append(float(np.isin(grams, prompt).mean()))
        earlier = np.union1d(earlier, unique)
    return shares


def _ngrams(ids: np.ndarray) -> np.ndarray:
    """Return a hash of every n-gram. [len(ids) - N + 1]"""
    ids = np.asarray(ids).astype(np.uint64)
    count = len(ids) - N + 1
    if count < 1:
        return _NONE
    grams = np.zeros(count, np.uint64)
    for place, factor in enumerate(_FACTORS):
        grams += (ids[place : place + count] + np.uint64(1)) * factor  # wraps around
    return grams
