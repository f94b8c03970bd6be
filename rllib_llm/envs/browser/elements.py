"""Elements of a page as numbered lines of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

TYPED = ("field", "textarea")  # kinds that text can be typed into
_SWITCHED = ("checkbox", "radio")
_MAX_NAME = 200


@dataclasses.dataclass(frozen=True)
class Element:
    """One visible element.

    Attributes:
        number: Its number on the page, from 1.
        kind: ``button``, ``link``, ``tab``, ``field``, ``textarea``, ``checkbox``,
            ``radio``, ``list``, ``text``, another role of the page, or an SVG tag.
        name: Its text or label, else an attribute that names it.
        value: The text of a field, the choice of a list, ``on`` or ``off``, or "".
        is_focused: Whether keys that are pressed reach it.
        options: The texts that a list offers.
        box: Left, top, right and bottom, in pixels of the window.
    """

    number: int
    kind: str
    name: str
    value: str = ""
    is_focused: bool = False
    options: tuple[str, ...] = ()
    box: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def line(self) -> str:
        """Its line in the list, e.g. ``3 field "name": "Ann" (focused)``."""
        text = f"{self.number} {self.kind} {quoted(self.name)}"
        if self.kind in TYPED:
            text += f": {quoted(self.value)}"
        elif self.kind == "list":
            offered = ", ".join(map(quoted, self.options))
            text += f": {quoted(self.value)} of {offered}"
        elif self.kind in _SWITCHED or self.value == "on":
            text += f" {self.value}"
        return f"{text} (focused)" if self.is_focused else text


def read_elements(described: Sequence[Mapping[str, Any]]) -> list[Element]:
    """Return the elements that ``look()`` of ``page.js`` describes.

    Args:
        described: Mappings with ``kind``, ``name``, ``value``, ``box``, ``focused``
            and ``options``.
    """
    return [
        Element(
            number,
            str(each["kind"]),
            _short(each["name"]),
            _short(each["value"]),
            bool(each["focused"]),
            tuple(map(_short, each["options"])),
            tuple(each["box"]),
        )
        for number, each in enumerate(described, 1)
    ]


def page_text(elements: Sequence[Element]) -> str:
    """Return a page as text, one element per line."""
    return "\n".join(e.line for e in elements) or "The page is empty."


def quoted(text: str) -> str:
    r"""Return a text in quotation marks, with ``\"`` and ``\\`` inside."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _short(text: object) -> str:
    """Return a text in one line, cut after 200 characters."""
    joined = " ".join(str(text or "").split())
    return joined if len(joined) <= _MAX_NAME else f"{joined[:_MAX_NAME]}..."
