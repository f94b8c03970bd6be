"""A video in pictures: find the frames that show a thing by cropping."""

from __future__ import annotations

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.frames import THINGS, Frames
from rllib_llm.envs.parsing import require_bool, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.pictures.cells import noisy_picture
from rllib_llm.pictures.contract import PLACEHOLDER

# Name and values of each thing's colour.
THING_COLOURS = dict(
    zip(
        THINGS,
        (
            ("red", (230, 25, 25)),
            ("blue", (25, 25, 230)),
            ("green", (25, 190, 25)),
            ("yellow", (230, 230, 25)),
            ("pink", (230, 25, 230)),
            ("cyan", (25, 230, 230)),
            ("black", (20, 20, 20)),
            ("white", (245, 245, 245)),
        ),
        strict=True,
    )
)
_EMPTY = ("grey", (128, 128, 128))


@register_text_env("frames_pictures-v0")
class FramesPictures(Frames):
    """Say which frames of a video show a thing. Return the overlap of the intervals.

    Videos, crops, splits and rewards are those of ``frames-v0``, seed by seed. A frame
    is a picture of 2 x 2 cells: grey, or of the colour of a thing that it shows, in a
    cell of its own.
    """

    shows_pictures = True  # from the first crop on

    def start(
        self,
        rng: np.random.Generator,
        frames: int = 12,
        crop: int = 4,
        pixels: int = 32,
        thoughts: bool = False,
    ) -> str:
        """Draw a video and the thing that is asked for.

        Args:
            rng: Generator of both and of the pictures.
            frames: Number of frames, in [4, 200].
            crop: Maximum number of frames that a crop shows, in [1, 50].
            pixels: Height and width of a frame, in [16, 512].
            thoughts: Whether the expert says, before it acts, which colours the frames
                of the last crop have in reading order, "!" after the one that is asked
                for, and if they show the thing.
        """
        self.pixels = require_int("pixels", pixels, 16, 512)
        self.thinks = require_bool("thoughts", thoughts)
        super().start(rng, frames, crop)
        self._last: list[int] = []
        self._noise = int(rng.integers(2**31))
        thing = self.things[0]
        return (
            f"A video has {self.frames} frames. Which of them show the "
            f"{THING_COLOURS[thing][0]} {thing}? {self.format_hint}"
        )

    def reply(self, action: tuple[str, str]) -> TurnResult:
        """Show the frames of a crop, or rate the answer."""
        result = super().reply(action)
        self._last = self.cropped(action[1]) if self.tag == "crop" else []
        result.images = [self._picture(frame) for frame in self._last]
        return result

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the action of ``frames-v0``, after a thought if it thinks."""
        action = super().expert_action(rng)
        if not self.thinks or not self._last:
            return action
        return " ".join(self._thought(frame) for frame in self._last) + action

    def _thought(self, frame: int) -> str:
        asked = THING_COLOURS[self.things[0]][0]
        names = [name for name, _ in self._cells(frame)]
        # Small models learn to compare one word at once, not four at the end.
        marked = [f"{name}!" if name == asked else name for name in names]
        return f"{frame} {' '.join(marked)} {'yes' if asked in names else 'no'}"

    def _caption(self, frame: int) -> str:
        return PLACEHOLDER

    def _picture(self, frame: int) -> np.ndarray:
        """Return a frame. uint8 [pixels, pixels, 3]"""
        colours = np.reshape([values for _, values in self._cells(frame)], (2, 2, 3))
        # Of its own generator, so that a second crop shows the same picture.
        rng = np.random.default_rng([self._noise, frame, 1])
        return noisy_picture(colours, self.pixels, rng)

    def _cells(self, frame: int) -> list[tuple[str, tuple[int, int, int]]]:
        """Return name and values of the colour of each cell, in reading order."""
        rng = np.random.default_rng([self._noise, frame, 0])
        cells = [_EMPTY] * 4
        for place, thing in zip(
            rng.permutation(4), self.things_of(frame), strict=False
        ):
            cells[int(place)] = THING_COLOURS[thing]
        return cells
