"""Sokoban shown as pictures: the levels, moves and rewards of the task in text."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.grid import MOVE_FORMAT
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.sokoban import SokobanLevels
from rllib_llm.pictures.cells import cell_picture
from rllib_llm.pictures.contract import PLACEHOLDER

# By the symbols of the level in text.
_COLOURS = {
    "_": (240, 240, 240),
    "#": (50, 50, 60),
    "T": (60, 200, 80),
    "X": (150, 95, 30),
    "P": (225, 40, 40),
    "+": (200, 60, 220),
    "*": (40, 90, 230),
}


@register_text_env("sokoban_pictures-v0")
class SokobanPictures(SokobanLevels):
    """Push all boxes onto targets by pictures of the level. Return 1 if solved.

    Levels, moves, splits and rewards are those of ``sokoban-v0``, seed by seed. Each
    observation is a picture without a word about the positions.
    """

    def start(
        self,
        rng: np.random.Generator,
        size: int = 4,
        boxes: int = 1,
        walls: int = 0,
        depth: int = 3,
        box_reward: float = 0.0,
        step_reward: float = 0.0,
        pixels: int = 32,
    ) -> TurnResult:
        """Draw a level.

        Args:
            rng: Generator of the level.
            size: Number of rows and columns inside of the outer walls, in [3, 10].
            boxes: Number of boxes, in [1, 4].
            walls: Number of inner walls, in [0, 20].
            depth: Number of pulls backwards from the solution, in [1, 50].
            box_reward: Reward for each box pushed onto a target, subtracted when it
                leaves.
            step_reward: Reward of every valid move.
            pixels: Height and width of the picture, in [16, 512], at least 2 a cell.
        """
        require_int("size", size, 3, 10)
        self.pixels = require_int("pixels", pixels, max(16, 2 * size), 512)
        self.begin(rng, size, boxes, walls, depth, box_reward, step_reward)
        legend = "Red is you, brown a box, green its target, purple you on it"
        legend += ", blue a box on it" if boxes > 1 else ""
        legend += ", black a wall" if walls else ""
        return self._seen(f"{legend}. Push brown to green. {MOVE_FORMAT}")

    def reply(self, action: str) -> TurnResult:
        """Move, push, and show the level."""
        result = super().reply(action)
        if result.terminated:
            return result
        seen = self._seen("Go on.")
        result.observation, result.images = seen.observation, seen.images
        return result

    def _seen(self, text: str) -> TurnResult:
        """Return a picture of the level, and a text below it."""
        rows = [row.split() for row in str(self.level).splitlines()]
        cells = np.array([[_COLOURS[symbol] for symbol in row] for row in rows])
        picture = cell_picture(cells, self.pixels).astype(np.uint8)
        return TurnResult(f"{PLACEHOLDER}\n{text}", images=[picture])
