"""Views of a page of MiniWoB++: its elements as text, or its screenshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from rllib_llm.envs.adapters.miniwob_pages import PAGE_SIZE, PageState
from rllib_llm.envs.browser.actions import (
    FORMAT_HINT,
    KEYS,
    PageAction,
    read_action,
)
from rllib_llm.envs.browser.elements import TYPED, page_text, quoted
from rllib_llm.envs.browser.screen import Screen, read_picture, read_screen_action
from rllib_llm.envs.parsing import require_choice, require_int
from rllib_llm.errors import ConfigError
from rllib_llm.pictures import contract

MODES = ("dom", "screen")
_WORDS = ("Ann", "Bob", "abc", "42")


class PageView(Protocol):
    """Interface of views: what the model sees of a page, and its actions as text."""

    @property
    def hint(self) -> str:
        """The format of actions, for the model."""
        ...

    def shown(
        self, state: PageState, before: str = "", after: str = ""
    ) -> tuple[str, list[np.ndarray]]:
        """Return an observation and its pictures: the page between two texts."""
        ...

    def read(self, completion: str, state: PageState) -> PageAction:
        """Return the last action in a text; ActionProblem if there is none."""
        ...

    def written(self, action: PageAction, state: PageState) -> str:
        """Return an action on an element, or the first step to it, as text."""
        ...

    def random(self, rng: np.random.Generator, state: PageState) -> str:
        """Return a random action as text."""
        ...


class ElementView:
    """The elements as numbered lines, by which actions name them."""

    hint = FORMAT_HINT

    def shown(
        self, state: PageState, before: str = "", after: str = ""
    ) -> tuple[str, list[np.ndarray]]:
        """Return the elements between two texts, and no picture."""
        return _joined(before, page_text(state.elements), after), []

    def read(self, completion: str, state: PageState) -> PageAction:
        """Return the last action in a text; ActionProblem if there is none."""
        return read_action(completion, state.elements)

    def written(self, action: PageAction, state: PageState) -> str:
        """Return the action as text."""
        return str(action)

    def random(self, rng: np.random.Generator, state: PageState) -> str:
        """Return a random action on a random element."""
        elements = state.elements
        if not elements:
            return f"press {rng.choice(KEYS)}"
        element = elements[int(rng.integers(len(elements)))]
        if element.kind in TYPED and rng.random() < 0.5:
            return str(PageAction("type", element.number, str(rng.choice(_WORDS))))
        if element.options:
            option = str(rng.choice(element.options))
            return str(PageAction("select", element.number, option))
        return str(PageAction("click", element.number))


@dataclasses.dataclass(frozen=True)
class ScreenView:
    """The page as a picture, on which actions name places.

    Attributes:
        screen: The page as a grid of places.
        pixels: Width of the picture.
    """

    screen: Screen
    pixels: int

    @property
    def hint(self) -> str:
        """The format of actions, for the model."""
        return self.screen.hint

    def shown(
        self, state: PageState, before: str = "", after: str = ""
    ) -> tuple[str, list[np.ndarray]]:
        """Return the picture between two texts, which may quote the page."""
        quoted_texts = contract.quoted(before), contract.quoted(after)
        text = _joined(quoted_texts[0], contract.PLACEHOLDER, quoted_texts[1])
        height = round(self.pixels * self.screen.height / self.screen.width)
        return text, [read_picture(state.png, self.pixels, height)]

    def read(self, completion: str, state: PageState) -> PageAction:
        """Return the last action in a text; ActionProblem if there is none."""
        return read_screen_action(completion, state.elements, self.screen)

    def written(self, action: PageAction, state: PageState) -> str:
        """Return a click in the element's box, or the next key towards its text.

        Raises:
            NotImplementedError: For a choice from a list, whose options the browser
                shows outside of the page.
            ValueError: If the grid has no place in the element.
        """
        if action.kind == "press":
            return str(action)
        if action.kind == "select":
            raise NotImplementedError("Lists cannot be used in mode='screen'.")
        assert action.number is not None, "Experts name elements."
        element = state.elements[action.number - 1]
        if action.kind == "click" or not element.is_focused:
            column, row = self.screen.cell_in(element.box)
            return f"click {column} {row}"
        if not action.text.startswith(element.value):
            return "press backspace"
        return f"type {quoted(action.text[len(element.value) :])}"

    def random(self, rng: np.random.Generator, state: PageState) -> str:
        """Return a click at a random place, or a word for a focused field."""
        is_typed = any(e.is_focused and e.kind in TYPED for e in state.elements)
        if is_typed and rng.random() < 0.5:
            return f"type {quoted(str(rng.choice(_WORDS)))}"
        column, row = rng.integers((self.screen.columns, self.screen.rows))
        return f"click {column} {row}"


def page_view(mode: str, pixels: int, grid: Sequence[int]) -> PageView:
    """Return the view of a mode.

    Args:
        mode: A name of :data:`MODES`.
        pixels: Width of the picture, in [16, 160].
        grid: Columns and rows of the places, at most one a pixel of the page.

    Raises:
        ConfigError: If one of them is not possible, or has no effect in the mode.
    """
    require_choice("mode", mode, MODES)
    width, height = PAGE_SIZE
    require_int("pixels", pixels, 16, width)
    if isinstance(grid, str) or len(grid) != 2:
        raise ConfigError(
            f"grid={grid!r} must be two numbers: columns and rows, e.g. [16, 21]."
        )
    columns = require_int("grid[0]", grid[0], 2, width)
    rows = require_int("grid[1]", grid[1], 2, height)
    if mode == "screen":
        return ScreenView(Screen(width, height, columns, rows), pixels)
    if (pixels, columns, rows) != (width, width, height):
        raise ConfigError(
            f"pixels={pixels} and grid={list(grid)} have no effect in mode='dom'. "
            "Leave them out, or set mode='screen'."
        )
    return ElementView()


def _joined(*texts: str) -> str:
    return "\n".join(filter(None, texts))
