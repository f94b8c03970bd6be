"""Actions on the elements of a page, as texts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from rllib_llm.envs.browser.elements import TYPED, Element, quoted
from rllib_llm.envs.parsing import last_match

KEYS = ("enter", "tab", "escape", "backspace", "up", "down", "left", "right")
FORMAT_HINT = (
    """Use 'click 2', 'type 3 "some text"', 'select 4 "an option"' or 'press enter'."""
)
TEXT = r'"((?:[^"\\\n]|\\["\\]){0,200})"'
_PATTERN = re.compile(
    rf"\b(?:(click)[ \t]+([0-9]{{1,4}})\b"
    rf"|(type)[ \t]+(?:([0-9]{{1,4}})[ \t]+)?{TEXT}"
    rf"|(select)[ \t]+([0-9]{{1,4}})[ \t]+{TEXT}"
    rf"|(press)[ \t]+({'|'.join(KEYS)})\b)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r'\\(["\\])')


@dataclasses.dataclass(frozen=True)
class PageAction:
    """One action.

    Attributes:
        kind: ``click``, ``type``, ``select`` or ``press``.
        number: Number of the element; None: the focused one.
        text: Text to type, text of the option, or name of the key.
        option: Number of the option in its list, from 0.
        place: Pixels from the left and the top of the window, of a click at a place
            instead of on an element.
    """

    kind: str
    number: int | None = None
    text: str = ""
    option: int = 0
    place: tuple[float, float] | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        text = f" {quoted(self.text)}" if self.kind in ("type", "select") else ""
        key = f" {self.text}" if self.kind == "press" else ""
        return f"{self.kind}{number}{text}{key}"


class ActionProblem(Exception):
    """An action that the page does not allow; the message is for the model."""


def read_action(completion: str, elements: Sequence[Element]) -> PageAction:
    """Return the last action in a text.

    Args:
        completion: The model's text.
        elements: Elements of the page.

    Raises:
        ActionProblem: If there is none, or the page does not allow it.
    """
    match = last_match(_PATTERN, completion)
    if match is None:
        raise ActionProblem(FORMAT_HINT)
    kind, *arguments = (g for g in match.groups() if g is not None)
    kind = kind.lower()
    if kind == "press":
        return PageAction(kind, text=arguments[0].lower())
    text = "" if kind == "click" else unescaped(arguments.pop())
    action = PageAction(kind, int(arguments[0]) if arguments else None, text)
    element = _target(action, elements)
    if kind == "type":
        _check_typing(text, element)
    elif kind == "select":
        return dataclasses.replace(action, option=_option(text, element))
    return action


def unescaped(text: str) -> str:
    r"""Return a text of :data:`TEXT` without the backslashes of ``\"`` and ``\\``."""
    return _ESCAPED.sub(r"\1", text)


def check_keys(text: str) -> None:
    """Check that a text can be typed.

    Raises:
        ActionProblem: If not.
    """
    if not _can_be_typed(text):
        raise ActionProblem(f"{quoted(text)} has characters without a key.")


def _check_typing(text: str, element: Element) -> None:
    if element.kind not in TYPED:
        raise ActionProblem(_wrong(element, "Text can be typed into", TYPED))
    check_keys(text)


def _option(text: str, element: Element) -> int:
    if element.kind != "list":
        raise ActionProblem(_wrong(element, "Options are selected in", ("list",)))
    if text not in element.options:
        offered = ", ".join(map(quoted, element.options))
        raise ActionProblem(
            f"Element {element.number} has no option {quoted(text)}. It has {offered}."
        )
    return element.options.index(text)


def _target(action: PageAction, elements: Sequence[Element]) -> Element:
    if action.number is None:
        focused = next((e for e in elements if e.is_focused), None)
        if focused is None:
            raise ActionProblem(
                "No element is focused. Name one, e.g. 'type 3 \"some text\"'."
            )
        return focused
    if not 1 <= action.number <= len(elements):
        raise ActionProblem(
            f"There is no element {action.number}. The page has elements 1 to "
            f"{len(elements)}."
        )
    return elements[action.number - 1]


def _wrong(element: Element, rule: str, kinds: Sequence[str]) -> str:
    needed = " or ".join(kinds)
    return f"{rule} a {needed}, but element {element.number} is a {element.kind}."


def _can_be_typed(text: str) -> bool:
    # The driver has keys for the basic plane only, and reads its private use area as
    # special keys.
    return all(c.isprintable() and ord(c) < 0xE000 for c in text)
