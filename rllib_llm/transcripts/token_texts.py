"""Text of single tokens of a turn."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"  # the decoder's replacement for an incomplete character
_LONGEST = 4  # bytes of a UTF-8 character, so at most as many tokens


def decode_all(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | np.ndarray
) -> str:
    """Return the text of tokens, with special tokens and without clean-up."""
    return tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def token_texts(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | np.ndarray
) -> list[str]:
    """Return the text that each token adds to a turn.

    If a character spans several tokens, the last one gets it and the others get "".
    Each token is decoded together with the one before it, because some tokenizers drop
    a leading space.

    Args:
        tokenizer: A transformers tokenizer.
        ids: The tokens of a turn. [T]

    Returns:
        As many strings as ids; joined they are the text of the turn. [T]
    """
    texts: list[str] = []
    tokens = tuple(int(i) for i in ids)
    before = read = 0  # tokens[before:read] is the context of the decoder
    for end in range(1, len(tokens) + 1):
        context = _decoded(tokenizer, tokens[before:read])
        text = _decoded(tokenizer, tokens[before:end])
        is_incomplete = text.endswith(_UNFINISHED) and end - read < _LONGEST
        if is_incomplete and end < len(tokens):
            texts.append("")
            continue
        texts.append(text[len(context) :])
        before, read = read, end
    return texts


@functools.lru_cache(maxsize=2**15)
def _decoded(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> str:
    """Return the text of one token or a few; turns repeat the same ones."""
    return decode_all(tokenizer, ids)
