"""Tokens that the loss leaves out although they were sampled, or that it adds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.pictures.spec import ImageSpec
from rllib_llm.transcripts.token_texts import decode_all, token_texts


class PatternMask:
    """Finds the tokens of a turn that overlap a match of a regular expression.

    The text is decoded from the sampled ids and never encoded again, so the result does
    not depend on how the tokenizer would split it.

    Args:
        pattern: Regular expression, in which ``.`` matches line breaks too.
        tokenizer: Tokenizer of the policy. Special tokens are part of the text.
    """

    def __init__(self, pattern: str, tokenizer: Any):
        self._pattern = re.compile(pattern, re.DOTALL)
        self._tokenizer = tokenizer

    def __call__(self, action_ids: np.ndarray) -> np.ndarray:
        """Return whether each token of a turn overlaps a match. bool [T]

        A token that is only partly inside a match counts as inside. An empty match
        contains no token.

        Args:
            action_ids: The sampled tokens of one turn. int [T]
        """
        inside = np.zeros(len(action_ids), bool)
        matches = list(self._pattern.finditer(decode_all(self._tokenizer, action_ids)))
        if not matches:
            return inside
        lengths = [len(text) for text in token_texts(self._tokenizer, action_ids)]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        # The bytes of a character belong to its last token: so do the tokens before.
        for index in range(len(lengths) - 2, -1, -1):
            if not lengths[index]:
                ends[index] = ends[index + 1]
        for match in matches:
            if match.start() < match.end():
                inside |= (starts < match.end()) & (ends > match.start())
        return inside


def leave_out(
    out: dict[str, np.ndarray],
    masked_turns: Sequence[frozenset[int]],
    pattern_mask: PatternMask | None,
) -> None:
    """Remove tokens from the loss mask; they stay as context of later ones.

    Args:
        out: Columns of rows; ``loss_mask`` [B, T] is changed.
        masked_turns: Turns of each row that filters or files exclude. [B]
        pattern_mask: Finds more tokens in each remaining turn; None: none.
    """
    for ids, turn_ids, mask, turns in zip(
        out[columns.INPUT_IDS],
        out[columns.TURN_IDS],
        out[Columns.LOSS_MASK],
        masked_turns,
        strict=True,
    ):
        if turns:
            mask &= ~np.isin(turn_ids, list(turns))
        if pattern_mask is not None:
            for turn in np.unique(turn_ids[mask]):
                (places,) = np.nonzero(turn_ids == turn)
                mask[places[pattern_mask(ids[places])]] = False


def weigh_observations(
    out: dict[str, np.ndarray], weight: float, pictures: ImageSpec | None = None
) -> None:
    """Train prompt tokens too, all but a row's first, which nothing predicts.

    Placeholders of pictures are no text, and are not trained.

    Args:
        out: Columns of rows; ``loss_weights`` and ``loss_mask`` [B, T] are changed.
        weight: Weight of a prompt token, relative to a sampled one.
        pictures: Picture inputs of the model; None: it reads text alone.
    """
    read = out[columns.ATTENTION_MASK] & (out[columns.TURN_IDS] < 0)
    read[:, 0] = False
    if pictures is not None:
        read &= out[columns.INPUT_IDS] != pictures.token_id
    # A row's sampled tokens have equal weights, so the maximum is the weight of each.
    sampled = out[columns.LOSS_WEIGHTS].max(axis=1, keepdims=True)
    out[columns.LOSS_WEIGHTS] += read * np.float32(weight) * sampled
    out[Columns.LOSS_MASK] = out[Columns.LOSS_MASK] | read
