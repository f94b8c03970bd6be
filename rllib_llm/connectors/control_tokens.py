"""Encoding of control tokens' names in observations as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rllib_llm.errors import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Mark in a rendered text for the n-th control token that an observation contains.
# Unicode reserves both characters as noncharacters, so texts do not contain them.
_MARK = re.compile("\ufdd0(\\d+)\ufdd1")


_UNREADABLE = re.compile("[\ufdd0\ud800-\udfff]")


class ControlTokens:
    """Encoder of texts in which control tokens' names are marked as plain text.

    Args:
        tokenizer: A transformers tokenizer.
        names: The control tokens' names.
        picture: Text in the model's control tokens that stands for a picture; None: a
            model of text.

    Attributes:
        picture_mark: Mark of a picture's place in a text; "" for a model of text.

    Raises:
        TemplateError: If the tokenizer cannot encode one of the names as plain text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        names: Iterable[str] = (),
        picture: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._names = sorted(names)
        self._ids = [self._plain_ids(name) for name in self._names]
        longest_first = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._pattern = re.compile(pattern)
        self.picture_mark = ""
        if picture is not None:
            self.picture_mark = f"\ufdd0{len(self._names)}\ufdd1"
            self._names.append(picture)
            self._ids.append(tokenizer.encode(picture, add_special_tokens=False))

    def clean(self, text: str) -> str:
        """Return ``text`` without forged marks and lone surrogates.

        Decoded bytes and JSON may hold surrogates, and tokenizers refuse them.
        """
        return _UNREADABLE.sub("\ufffd", text)

    def mark(self, text: str) -> str:
        """Return ``text`` with a mark in place of each control token's name."""
        return self._pattern.sub(
            lambda match: f"\ufdd0{self._names.index(match[0])}\ufdd1", text
        )

    def spell_out(self, text: str) -> str:
        """Return the text with names in place of marks, the inverse of :meth:`mark`."""
        return _MARK.sub(lambda mark: self._names[int(mark[1])], text)

    def marked_length(self, text: str, length: int) -> int:
        """Return how much of ``text`` spells out to ``length`` characters."""
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
                # The template writes bos and eos; the tokenizer must not add them.
                ids += self._tokenizer.encode(part, add_special_tokens=False)
        return ids

    def _plain_ids(self, name: str) -> list[int]:
        """Return the ids of a control token's name as text."""
        control_id = self._tokenizer.convert_tokens_to_ids(name)
        # Unigram vocabularies may hold the name itself; two parts of it avoid that.
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
            "vocabulary of the tokenizer's model (it stays an added token), or use a "
            "checkpoint with another tokenizer."
        )
