"""The text of single tokens, for people who look at a turn token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are no character yet
_LONGEST = 4  # bytes of a character, and so tokens that may wait for its end


def decode_all(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of tokens as it stands, special tokens included."""
    return tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return what each token adds to the text of a turn.

    A character whose bytes are spread over several tokens is that of the last one; the
    others add nothing. Each token is decoded behind the one before it, because some
    tokenizers drop a space in front.

    Args:
        tokenizer: A transformers tokenizer.
        ids: The tokens of a turn. [T]

    Returns:
        As many strings as ids; joined they are the text of the turn.
    """
    texts: list[str] = []
    before = read = 0  # ids[before:read] is decoded along, as context
    for end in range(1, len(ids) + 1):
        known = decode_all(tokenizer, ids[before:read])
        text = decode_all(tokenizer, ids[before:end])
        waits = text.endswith(_UNFINISHED) and end - read < _LONGEST
        if waits and end < len(ids):
            texts.append("")
            continue
        texts.append(text[len(known) :])
        before, read = read, end
    return texts
