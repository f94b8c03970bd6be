"""FrozenLake shown as pictures: the maps, moves and rewards of the task in text."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.frozen_lake import FrozenLake
from rllib_llm.envs.grid import MOVE_FORMAT
from rllib_llm.envs.parsing import require_bool, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.pictures.cells import cell_picture
from rllib_llm.pictures.contract import PLACEHOLDER

# Ice, hole, goal, and the player on top of them.
_COLOURS = {"S": (225, 240, 255), "F": (225, 240, 255), "H": (20, 40, 90)}
_COLOURS["G"] = (40, 180, 60)
_PLAYER = (220, 40, 40)


@register_text_env("frozen_lake_pictures-v0")
class FrozenLakePictures(FrozenLake):
    """Cross the ice to the goal by pictures of the lake. Return 1 if reached.

    Maps, dynamics, splits and rewards are those of ``frozen_lake-v0``, seed by seed.
    Each observation is a picture: ice is white, holes are dark blue, the goal is green
    and the player is red. ``surroundings`` adds the text of ``frozen_lake-v0`` about
    the position and the moves to list.
    """

    def start(
        self,
        rng: np.random.Generator,
        size: int = 4,
        slippery: bool = False,
        frozen_prob: float = 0.8,
        pixels: int = 32,
        surroundings: bool = False,
    ) -> TurnResult:
        """Draw a map.

        Args:
            rng: Generator of the map and, on slippery ice, of slides.
            size: Number of rows and columns, in [3, 16].
            slippery: Whether a move slides to either side, with probability 1/3 each.
            frozen_prob: Probability that a cell is ice instead of a hole, in [0, 1].
            pixels: Height and width of the picture, in [16, 512], at least 2 a cell.
            surroundings: Whether the text describes the position, too.
        """
        require_int("size", size, 3, 16)
        self.pixels = require_int("pixels", pixels, max(16, 2 * size), 512)
        self.described = require_bool("surroundings", surroundings)
        super().start(rng, size, slippery, frozen_prob)
        ice = " The ice is slippery." if slippery else ""
        rules = f"Red is you, blue is a hole. Reach green.{ice} {MOVE_FORMAT}"
        return self._shown(rules)

    def reply(self, action: str) -> TurnResult:
        """Move, slide if the ice is slippery, and show the new position."""
        result = super().reply(action)
        if result.terminated:
            return result
        shown = self._shown("Go on.")
        result.observation, result.images = shown.observation, shown.images
        return result

    def _shown(self, text: str) -> TurnResult:
        """Return a picture of the lake, and a text below it."""
        lines = [PLACEHOLDER, text]
        if self.described:
            lines.append(self._surroundings())
        return TurnResult("\n".join(lines), images=[self._picture()])

    def _picture(self) -> np.ndarray:
        """Return the lake with the player. uint8 [pixels, pixels, 3]"""
        cells = np.array([[_COLOURS[cell] for cell in row] for row in self.map])
        cells[self._position()] = _PLAYER
        return cell_picture(cells, self.pixels).astype(np.uint8)
