"""Metrics of repetition: within a turn, of earlier turns, and of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

N = 4  # tokens of an n-gram

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
    earlier: set[tuple[int, ...]] = set()
    for index, turn in enumerate(turns):
        grams = _ngrams(turn.action_ids)
        if not grams:
            continue
        unique = set(grams)
        shares[REPEAT_IN_TURN].append(1.0 - len(unique) / len(grams))
        if index:
            shares[REPEAT_OF_TURNS].append(_share_in(grams, earlier))
        shares[COPIED_PROMPT].append(_share_in(grams, set(_ngrams(turn.prompt_ids))))
        earlier |= unique
    return shares


def _ngrams(ids: np.ndarray) -> list[tuple[int, ...]]:
    """Return every n-gram. [len(ids) - N + 1]"""
    # Turns are short: sets of tuples take a tenth of the time of numpy's set functions.
    tokens = np.asarray(ids).tolist()
    return list(zip(*(tokens[place:] for place in range(N)), strict=False))


def _share_in(grams: list[tuple[int, ...]], others: set[tuple[int, ...]]) -> float:
    """Return the share of the n-grams that ``others`` contains."""
    return sum(gram in others for gram in grams) / len(grams)
