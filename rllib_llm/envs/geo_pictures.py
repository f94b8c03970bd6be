"""Say where a picture was taken: zoom to its marks of colours, search for them."""

from __future__ import annotations

import itertools

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.colour_grid import COLOURS, grid_picture
from rllib_llm.envs.geo import PARTS, Geo, Place, places
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.cells import noisy_picture
from rllib_llm.pictures.contract import PLACEHOLDER

_SIDE = 16  # rows and columns of cells of the scene
_SKY, _GROUND, _PANEL = (150, 200, 240), (150, 140, 120), (60, 60, 60)
# Row and column of the upper left cell of each mark of 2 x 2 cells.
_CORNERS = {"sign": (9, 2), "plate": (12, 11), "tower": (3, 7)}


def colour_codes() -> list[str]:
    """Return all codes of four colours, those of 2 x 2 cells in reading order."""
    return [" ".join(c) for c in itertools.product(COLOURS, repeat=4)]


@register_text_env("geo_pictures-v0")
class GeoPictures(Geo):
    """Name the city of a picture of a scene. Return 1 for it, 1/2: state, 1/4: country.

    The task is that of ``geo-v0``. ``look`` zooms to a part of the scene, whose mark
    are 2 x 2 coloured cells; ``search`` takes their colours in reading order.
    """

    shows_pictures = True
    format_hint = (
        "Use <look>sign</look>, <search>red blue green red</search> or "
        "<answer>city</answer>."
    )

    def start(
        self,
        rng: np.random.Generator,
        world: int = 0,
        count: int = 4,
        worlds: int = 1,
        pixels: int = 32,
    ) -> TurnResult:
        """Draw a city.

        Args:
            rng: Generator of the world, the city and the noise of pictures.
            world: Seed of all names and marks, >= 0.
            count: Countries, states of each and cities of each state, in [2, 4].
            worlds: Number of worlds from ``world`` on of which each episode has one,
                in [1, 10000]. With many of them names and marks cannot be learned.
            pixels: Height and width of each picture, in [16, 512].
        """
        self.pixels = require_int("pixels", pixels, _SIDE, 512)
        first = require_int("world", world, 0, 2**31 - 1)
        require_int("worlds", worlds, 1, 10_000)
        require_int("count", count, 2, 4)
        self.begin(rng, self._drawn_world(rng, first, count, worlds))
        self._noise = int(rng.integers(2**31))
        text = f"{PLACEHOLDER}\nIn which city is this? The picture has "
        text += f"{', '.join(PARTS)}. {self.format_hint}"
        return TurnResult(text, images=[self._scene()])

    def reply(self, action: tuple[str, str]) -> TurnResult:
        """Show a part, search for a mark, or rate the answer."""
        result = super().reply(action)
        if self.tag == "look" and not self.used["tool_error"]:
            result.images = [self._zoomed(action[1].lower())]
        return result

    def _drawn_world(
        self, rng: np.random.Generator, first: int, count: int, worlds: int
    ) -> tuple[Place, ...]:
        """Return one of the worlds that has a city of this split."""
        for _ in range(100):
            world = places(first + int(rng.integers(worlds)), count, colour_codes)
            if any(in_split(place.names[2], self.split) for place in world):
                return world
        raise ConfigError(
            f"world={first} with count={count} has no city of the split "
            f"{self.split!r}. Choose another world, a larger count or more worlds."
        )

    def _shown(self, part: str) -> str:
        return PLACEHOLDER

    def _search(self, mark: str) -> str | None:
        return super()._search(" ".join(mark.replace(",", " ").split()))

    def _scene(self) -> np.ndarray:
        """Return the picture of all parts. uint8 [pixels, pixels, 3]"""
        rng = np.random.default_rng([self._noise, 0])
        cells = np.full((_SIDE, _SIDE, 3), _SKY, float)
        cells[int(rng.integers(6, 11)) :] = _GROUND
        for part, (row, column) in _CORNERS.items():
            cells[row - 1 : row + 3, column - 1 : column + 3] = _PANEL
            colours = [COLOURS[c] for c in self._mark(part).split()]
            cells[row : row + 2, column : column + 2] = np.reshape(colours, (2, 2, 3))
        return noisy_picture(cells, self.pixels, rng)

    def _zoomed(self, part: str) -> np.ndarray:
        """Return the picture of a part's mark. uint8 [pixels, pixels, 3]"""
        # Of its own generator, so that a second look shows the same picture.
        rng = np.random.default_rng([self._noise, 1 + list(PARTS).index(part)])
        numbers = [list(COLOURS).index(c) for c in self._mark(part).split()]
        return grid_picture(np.reshape(numbers, (2, 2)), self.pixels, rng)

    def _mark(self, part: str) -> str:
        return self.place.codes[list(PARTS).index(part)]
