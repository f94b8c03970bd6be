"""A picture of coloured cells, and a question about one of them."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.pictures.cells import noisy_picture
from rllib_llm.pictures.contract import PLACEHOLDER

COLOURS = {
    "red": (230, 25, 25),
    "green": (25, 190, 25),
    "blue": (25, 25, 230),
    "yellow": (230, 230, 25),
}
_PATTERN = re.compile(rf"\b({'|'.join(COLOURS)})\b", re.IGNORECASE)


@register_text_env("colour_grid-v0")
class ColourGrid(TextEnv):
    """Name the colour of a cell in a picture of coloured cells. Return 1 or 0.

    The text names row and column; the colours are in the picture alone. Colourings are
    split into train and test by their hash.
    """

    max_turns = 1
    format_hint = f"Please answer with a colour: {', '.join(COLOURS)}."

    def start(
        self, rng: np.random.Generator, cells: int = 2, size: int = 32
    ) -> TurnResult:
        """Draw the colours and the cell.

        Args:
            rng: Generator of both.
            cells: Rows and columns of the grid, in [1, 4].
            size: Height and width of the picture, in pixels, in [16, 256].
        """
        require_int("cells", cells, 1, 4)
        require_int("size", size, 16, 256)
        drawn, row, column = draw_grid(rng, cells, self.split)
        self.right = list(COLOURS)[drawn[row, column]]
        text = f"{PLACEHOLDER}\nColour of row {row + 1}, column {column + 1}?"
        return TurnResult(text, images=[grid_picture(drawn, size, rng)])

    def parse(self, completion: str) -> str | None:
        """Return the last colour that the text names."""
        match = last_match(_PATTERN, completion)
        return match[1].lower() if match else None

    def reply(self, action: str) -> TurnResult:
        """Compare the colours."""
        right = action == self.right
        text = "Correct!" if right else f"Wrong: it is {self.right}."
        return TurnResult(text, float(right), terminated=True, success=right)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the cell's colour."""
        return self.right

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any colour."""
        return str(rng.choice(list(COLOURS)))

    def admissible_actions(self) -> list[str]:
        """Return all colours."""
        return list(COLOURS)


def draw_grid(
    rng: np.random.Generator, cells: int, split: str
) -> tuple[np.ndarray, int, int]:
    """Return colour numbers of a split [cells, cells], and a cell's row and column."""
    while True:
        drawn = rng.integers(len(COLOURS), size=(cells, cells))
        row, column = (int(n) for n in rng.integers(cells, size=2))
        if in_split(f"{drawn.tolist()} {row} {column}", split):
            return drawn, row, column


def grid_picture(drawn: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the picture of a grid of colour numbers. uint8 [size, size, 3]"""
    colours = np.array(list(COLOURS.values()), float)
    return noisy_picture(colours[drawn], size, rng)
