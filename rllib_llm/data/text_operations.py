"""Operations on numbered texts, as language models write them."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

_LINE = re.compile(
    r"^\W*(ADD|UPDATE|DELETE)\b[ \t]*(\d{0,6})[ \t]*:?[ \t]*(.*)$", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class TextOperation:
    """An operation.

    Attributes:
        kind: "add", "update" or "delete".
        number: Number of the text, from 1 in the order shown; 0 for "add".
        text: The new text; "" for "delete".
    """

    kind: Literal["add", "update", "delete"]
    number: int = 0
    text: str = ""


def read_operations(answer: str, count: int) -> list[TextOperation]:
    """Return the operations in an answer, one for each line that is one.

    ``ADD: text``, ``UPDATE 2: text`` and ``DELETE 2`` are operations; other lines, e.g.
    ``KEEP``, change nothing, nor do those with a number of no text.

    Args:
        answer: The answer.
        count: Number of texts that were shown.
    """
    operations = []
    for line in answer.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        kind, number, text = match[1].lower(), int(match[2] or 0), match[3].strip()
        if kind == "add" and text:
            operations.append(TextOperation("add", 0, text))
        elif kind == "update" and text and 1 <= number <= count:
            operations.append(TextOperation("update", number, text))
        elif kind == "delete" and 1 <= number <= count:
            operations.append(TextOperation("delete", number))
    return operations
