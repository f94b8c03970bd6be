"""A video in text: find the frames that show a thing by cropping."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer

THINGS = ("cat", "dog", "cup", "car", "bird", "hat", "tree", "boat")
_SPAN = re.compile(r"^([0-9]{1,3})[ \t]*-[ \t]*([0-9]{1,3})$")


@register_text_env("frames-v0")
class Frames(ToolOrAnswer):
    """Say which frames of a video show a thing. Return the overlap of the intervals.

    Captions stand for pictures. ``crop`` shows the captions of some frames; the answer
    is the first and the last frame, rated by the intersection over the union. Videos
    are split into train and test by their hash.
    """

    max_turns = 6
    format_hint = "Use <crop>1-4</crop> or <answer>2-5</answer>."
    tagged = re.compile(r"<(crop|answer)>([^<]*)</\1>")

    def start(self, rng: np.random.Generator, frames: int = 12, crop: int = 4) -> str:
        """Draw a video and the thing that is asked for.

        Args:
            rng: Generator of both.
            frames: Number of frames, in [4, 200].
            crop: Maximum number of frames that a crop shows, in [1, 50].
        """
        self.frames = require_int("frames", frames, 4, 200)
        self.crop = require_int("crop", crop, 1, 50)
        while True:
            self.things = [str(t) for t in rng.permutation(THINGS)[:3]]
            ends = np.sort(rng.choice(self.frames, (3, 2)), axis=1) + 1
            self.spans = [(int(a), int(b)) for a, b in ends]
            if in_split(f"{self.things} {self.spans}", self.split):
                break
        self._seen: set[int] = set()
        return (
            f"A video has {self.frames} frames. Which of them show the "
            f"{self.things[0]}? {self.format_hint}"
        )

    def use(self, text: str) -> str:
        """Return the captions of the frames of a crop."""
        shown = self.cropped(text)
        self.used = {"tool": "crop", "tool_error": not shown}
        if not shown:
            return f"Crop from 1 to {self.frames}, as 1-{min(4, self.frames)}."
        self._seen |= set(shown)
        return "\n".join(f"{n}: {self._caption(n)}" for n in shown)

    def judge(self, answer: str) -> tuple[float, bool]:
        """Return the overlap with the right interval; success if they are equal."""
        span = self._span(answer)
        self.overlap = 0.0 if span is None else overlap(span, self.spans[0])
        return self.overlap, self.overlap == 1.0

    def more_info(self) -> dict[str, Any]:
        """Return the overlap of the answer, and this turn's crop."""
        used = {"tool": None, "tool_error": False, **self.used}
        return {"overlap": getattr(self, "overlap", 0.0), **used}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return a crop of the next frames not seen, then the answer."""
        unseen = set(range(1, self.frames + 1)) - self._seen
        if unseen:
            low = min(unseen)
            return f"<crop>{low}-{min(low + self.crop - 1, self.frames)}</crop>"
        return f"<answer>{self.spans[0][0]}-{self.spans[0][1]}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any interval, as a crop or as the answer."""
        low, high = sorted(int(n) + 1 for n in rng.integers(self.frames, size=2))
        tag = ("crop", "answer")[int(rng.integers(2))]
        return f"<{tag}>{low}-{high}</{tag}>"

    def cropped(self, text: str) -> list[int]:
        """Return the frames that a crop shows; none if it is no interval."""
        span = self._span(text)
        if span is None:
            return []
        return list(range(span[0], min(span[1], span[0] + self.crop - 1) + 1))

    def things_of(self, frame: int) -> list[str]:
        """Return the things of a frame, in alphabetical order."""
        spans = zip(self.things, self.spans, strict=True)
        return sorted(thing for thing, (a, b) in spans if a <= frame <= b)

    def _caption(self, frame: int) -> str:
        return ", ".join(self.things_of(frame)) or "nothing"

    def _span(self, text: str) -> tuple[int, int] | None:
        match = _SPAN.match(text.strip())
        low, high = (int(n) for n in match.groups()) if match else (0, 0)
        return (low, high) if 1 <= low <= high <= self.frames else None


def overlap(a: tuple[int, int], b: tuple[int, int]) -> float:
    """Return the intersection over the union of two intervals of whole numbers."""
    shared = max(0, min(a[1], b[1]) - max(a[0], b[0]) + 1)
    return shared / ((a[1] - a[0] + 1) + (b[1] - b[0] + 1) - shared)
