"""Operations on a set of functions, as language models write them."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal, cast

Kind = Literal["add", "revise", "remove"]

_HEAD = re.compile(r"^\W*(add|revise|remove)_function\b\W*(\w*)", re.IGNORECASE)
_FENCE = re.compile(r"^\s*```")


@dataclasses.dataclass(frozen=True)
class FunctionOperation:
    """An operation.

    Attributes:
        kind: "add", "revise" or "remove".
        name: Name of the function to remove; "" if its source names it.
        source: Source of the new function; "" for "remove".
    """

    kind: Kind
    name: str = ""
    source: str = ""


def read_function_operations(answer: str) -> list[FunctionOperation]:
    """Return the operations in an answer, in order.

    A line that begins with ``add_function`` or ``revise_function`` is followed by the
    source, which may stand in a fence and ends before the next operation; a line
    ``remove_function NAME`` stands alone. Text before the first operation is ignored.
    """
    heads: list[re.Match[str]] = []
    bodies: list[list[str]] = []
    for line in answer.splitlines():
        match = _HEAD.match(line)
        if match is not None:
            heads.append(match)
            bodies.append([])
        elif bodies and not _FENCE.match(line):
            bodies[-1].append(line)
    operations = []
    for match, body in zip(heads, bodies, strict=True):
        kind = cast(Kind, match[1].lower())
        if kind == "remove":
            operations.append(FunctionOperation(kind, match[2]))
        else:
            source = "\n".join(body).strip()
            operations.append(FunctionOperation(kind, source=source))
    return operations
