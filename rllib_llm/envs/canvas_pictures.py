"""A jigsaw of pixels: swap tiles until the picture is whole."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.canvas import Jigsaw
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.pictures.contract import PLACEHOLDER


@register_text_env("canvas_pictures-v0")
class CanvasPictures(Jigsaw):
    """Swap the tiles of a picture until red and green grow evenly. Return 1 then.

    Actions, rewards and infos are those of ``canvas-v0``, in which letters stand for
    the picture. Arrangements with their colours are split into train and test by their
    hash.
    """

    def start(
        self, rng: np.random.Generator, side: int = 2, pixels: int = 32
    ) -> TurnResult:
        """Draw the colours and the order of the tiles.

        Args:
            rng: Generator of both.
            side: Rows and columns of tiles, in [2, 3].
            pixels: Height and width of the picture, in [16, 512]; a multiple of
                ``side`` is used, the largest up to it.
        """
        require_int("side", side, 2, 3)
        self.side = side
        self.tile_pixels = require_int("pixels", pixels, 16, 512) // side
        self.whole = [str(i) for i in range(side**2)]
        while True:
            self.tiles = [self.whole[i] for i in rng.permutation(side**2)]
            # Of red, green and blue: the least and the greatest value. Blue is even.
            low = rng.integers(0, 60, 3)
            high = np.array([*rng.integers(190, 256, 2), low[2]])
            drawn = f"{self.tiles} {low.tolist()} {high.tolist()}"
            if self.tiles != self.whole and in_split(drawn, self.split):
                break
        self._levels = (low, high)
        return self._seen(
            "Swap tiles until the picture gets redder to the right and greener to the "
            f"bottom. Tiles have the numbers 1 to {side**2}, row by row. Answer as "
            "'swap 1 3'."
        )

    def reply(self, action: tuple[int, int]) -> TurnResult:
        """Swap two tiles and show the picture."""
        result = super().reply(action)
        if result.terminated:
            return result
        seen = self._seen("Go on.")
        result.observation, result.images = seen.observation, seen.images
        return result

    def _seen(self, text: str) -> TurnResult:
        return TurnResult(f"{PLACEHOLDER}\n{text}", images=[self._picture()])

    def _picture(self) -> np.ndarray:
        """Return the tiles in their present order.

        Returns:
            uint8 [side * tile_pixels, side * tile_pixels, 3].
        """
        low, high = self._levels
        length = self.side * self.tile_pixels
        rise = np.linspace(0.0, 1.0, length)
        shares = np.zeros((length, length, 3))
        shares[:, :, 0], shares[:, :, 1] = rise, rise[:, None]
        whole = (low + shares * (high - low)).round().astype(np.uint8)
        shown = np.empty_like(whole)
        for place, tile in enumerate(self.tiles):
            shown[self._area(place)] = whole[self._area(int(tile))]
        return shown

    def _area(self, number: int) -> tuple[slice, slice]:
        """Return the rows and columns of pixels of a place."""
        row, column = divmod(number, self.side)
        size = self.tile_pixels
        return (
            slice(row * size, (row + 1) * size),
            slice(column * size, (column + 1) * size),
        )
