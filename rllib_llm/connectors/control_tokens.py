"""Control tokens that a text spells out, encoded as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rllib_llm.errors import TemplateError

# Stands in a rendered text for the n-th control token that an observation spelled out.
# The two characters are reserved by Unicode and stand in no text.
_MARK = re.compile("\ufdd0(\\d+)\ufdd1")


_UNREADABLE = re.compile("[\ufdd0\ud800-\udfff]")


class ControlTokens:
    """Encodes texts in which the names of control tokens were marked as plain text.

    Args:
        tokenizer: A transformers tokenizer.
        names: The control tokens' names.

    Raises:
        TemplateError: If the tokenizer cannot encode one of the names as plain text.
    """

    def __init__(self, tokenizer: Any, names: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._names = sorted(names)
        self._ids = [self._plain_ids(name) for name in self._names]
        longest_first = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._pattern = re.compile(pattern)

    def clean(self, text: str) -> str:
        """Return ``text`` without forged marks, and without what has no UTF-8.

        Tokenizers refuse lone surrogates, which decoded bytes and JSON may hold.
        """
        return _UNREADABLE.sub("\ufffd", text)

    def mark(self, text: str) -> str:
        """Return ``text`` with a mark in place of each control token's name."""
        return self._pattern.sub(
            lambda match: f"\ufdd0{self._names.index(match[0])}\ufdd1", text
        )

    def spell_out(self, text: str) -> str:
        """Invert :meth:`mark`."""
        return _MARK.sub(lambda mark: self._names[int(mark[1])], text)

    def marked_length(self, text: str, length: int) -> int:
        """Return how much of ``text`` makes ``length`` characters once spelt out."""
        for mark in _MARK.finditer(text):
            if mark.start() >= length:
                break
            length += len(mark[0]) - len(self._names[int(mark[1])])
        return length

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text with marks."""
        ids: list[int] = []
        for n, part in enumerate(_MARK.split(text)):
            if n % 2:
                ids += self._ids[int(part)]
            elif part:
                # The template writes bos and the like itself.
                ids += self._tokenizer.encode(part, add_special_tokens=False)
        return ids

    def _plain_ids(self, name: str) -> list[int]:
        """Return the ids of a control token's name as text."""
        control_id = self._tokenizer.convert_tokens_to_ids(name)
        # Unigram models know the name as a piece of text, but not its halves.
        for cut in range(len(name)):
            ids = [
                i
                for part in filter(None, (name[:cut], name[cut:]))
                for i in self._tokenizer(
                    part, add_special_tokens=False, split_special_tokens=True
                )["input_ids"]
            ]
            if control_id not in ids:
                return ids
        raise TemplateError(
            f"{type(self._tokenizer).__name__} cannot encode {name!r} as plain text, "
            "so an observation with this text would end the turn. Remove it from the "
            "pieces of the tokenizer's model (it stays an added token), or use a "
            "checkpoint with another tokenizer."
        )
