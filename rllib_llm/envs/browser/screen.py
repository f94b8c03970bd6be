"""Screenshots of pages, and actions at places of them."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence

import numpy as np
from PIL import Image

from rllib_llm.envs.browser.actions import (
    KEYS,
    TEXT,
    ActionProblem,
    PageAction,
    check_keys,
    unescaped,
)
from rllib_llm.envs.browser.elements import TYPED, Element
from rllib_llm.envs.parsing import last_match

_PATTERN = re.compile(
    rf"\b(?:(click)[ \t]+([0-9]{{1,4}})[ \t]+([0-9]{{1,4}})\b"
    rf"|(type)[ \t]+{TEXT}"
    rf"|(press)[ \t]+({'|'.join(KEYS)})\b)",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Screen:
    """Part of a window that is shown, as a grid of places that can be clicked.

    Attributes:
        width: Its width in pixels of the page.
        height: Its height in pixels of the page.
        columns: Columns of the grid, numbered from 0 at the left.
        rows: Rows of the grid, numbered from 0 at the top.
    """

    width: int
    height: int
    columns: int
    rows: int

    @property
    def hint(self) -> str:
        """The format of actions, for the model."""
        return (
            f"Use 'click X Y' with X from 0 to {self.columns - 1} and Y from 0 to "
            f"{self.rows - 1}, 'type \"some text\"' or 'press enter'."
        )

    def centre(self, column: int, row: int) -> tuple[float, float]:
        """Return the centre of a cell, in pixels from the left and the top."""
        x = (column + 0.5) * self.width / self.columns
        return x, (row + 0.5) * self.height / self.rows

    def cell_in(self, box: tuple[int, int, int, int]) -> tuple[int, int]:
        """Return the cell next to the middle of a box whose centre is in the box.

        Args:
            box: Left, top, right and bottom, in pixels.

        Raises:
            ValueError: If no cell's centre is in the box.
        """
        left, top, right, bottom = box
        column = _nearest(left, right, self.width, self.columns)
        row = _nearest(top, bottom, self.height, self.rows)
        x, y = self.centre(column, row)
        if not (left < x < right and top < y < bottom):
            raise ValueError(
                f"No place of a grid of {self.columns} columns and {self.rows} rows is "
                f"in the box {box} of an element. Use a finer grid."
            )
        return column, row


def _nearest(low: int, high: int, length: int, cells: int) -> int:
    """Return the cell that holds the middle of an interval, within the screen."""
    return min(max(int((low + high) / 2 * cells / length), 0), cells - 1)


def read_screen_action(
    completion: str, elements: Sequence[Element], screen: Screen
) -> PageAction:
    """Return the last action in a text.

    Args:
        completion: The model's text.
        elements: Elements of the page, of which one may be focused.
        screen: The screen.

    Raises:
        ActionProblem: If there is none, its place is not on the screen, or no field
            receives its text.
    """
    match = last_match(_PATTERN, completion)
    if match is None:
        raise ActionProblem(screen.hint)
    kind, *arguments = (g for g in match.groups() if g is not None)
    kind = kind.lower()
    if kind == "press":
        return PageAction(kind, text=arguments[0].lower())
    if kind == "type":
        text = unescaped(arguments[0])
        if not any(e.is_focused and e.kind in TYPED for e in elements):
            raise ActionProblem("No field is focused. Click on one first.")
        check_keys(text)
        return PageAction(kind, text=text)
    column, row = (int(n) for n in arguments)
    if column >= screen.columns or row >= screen.rows:
        raise ActionProblem(f"{column} {row} is not on the screen. {screen.hint}")
    return PageAction(kind, place=screen.centre(column, row))


def read_picture(png: bytes, width: int, height: int) -> np.ndarray:
    """Return a PNG file's picture in a size, averaged over pixels that are merged.

    Args:
        png: The file.
        width: Width in pixels.
        height: Height in pixels.

    Returns:
        uint8 [height, width, 3].
    """
    with Image.open(io.BytesIO(png)) as file:
        picture = file.convert("RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BOX)
    return np.array(picture)
