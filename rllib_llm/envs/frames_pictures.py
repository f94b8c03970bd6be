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
_EMPTY = (128, 128, 128)


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
            thoughts: Whether the expert says of each frame of the last crop if it
                shows the thing, before it acts.
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
        thing = self.things[0]
        seen = [(n, thing in self.things_of(n)) for n in self._last]
        return " ".join(f"{n} {'yes' if yes else 'no'}" for n, yes in seen) + action

    def _caption(self, frame: int) -> str:
        return PLACEHOLDER

    def _picture(self, frame: int) -> np.ndarray:
        """Return a frame. uint8 [pixels, pixels, 3]"""
        # Of its own generator, so that a second crop shows the same picture.
        rng = np.random.default_rng([self._noise, frame])
        cells = np.full((4, 3), _EMPTY, float)
        things = self.things_of(frame)
        for place, thing in zip(rng.permutation(4), things, strict=False):
            cells[place] = THING_COLOURS[thing][1]
        return noisy_picture(cells.reshape(2, 2, 3), self.pixels, rng)
