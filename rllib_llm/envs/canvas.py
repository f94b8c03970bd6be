"""A jigsaw in text: swap tiles until the picture is whole."""

from __future__ import annotations

import re
import string
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split

_PATTERN = re.compile(r"\bswap[ \t]+([0-9]{1,2})[ \t]+([0-9]{1,2})\b", re.IGNORECASE)


class Jigsaw(TextEnv):
    """Swaps of tiles until they are in order; subclasses draw and show them."""

    max_turns = 5
    format_hint = "Please answer as 'swap 1 3'."
    whole: list[str]
    tiles: list[str]

    def parse(self, completion: str) -> tuple[int, int] | None:
        """Return the tiles of the last ``swap <n> <m>``, counted from 0."""
        match = last_match(_PATTERN, completion)
        places = [int(n) - 1 for n in match.groups()] if match else []
        fits = len(set(places)) == 2 and all(0 <= p < len(self.tiles) for p in places)
        return (places[0], places[1]) if fits else None

    def reply(self, action: tuple[int, int]) -> TurnResult:
        """Swap two tiles."""
        a, b = action
        self.tiles[a], self.tiles[b] = self.tiles[b], self.tiles[a]
        if self.tiles == self.whole:
            return TurnResult("Whole!", reward=1.0, terminated=True, success=True)
        return TurnResult(self._shown(), success=False)

    def more_info(self) -> dict[str, Any]:
        """Return the share of tiles in place, and the swap as a tool."""
        placed = [a == b for a, b in zip(self.tiles, self.whole, strict=True)]
        return {"placed": float(np.mean(placed)), "tool": "swap", "tool_error": False}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the swap that puts the first wrong tile right."""
        wrong = next(i for i, t in enumerate(self.tiles) if t != self.whole[i])
        return f"swap {wrong + 1} {self.tiles.index(self.whole[wrong]) + 1}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any swap."""
        a, b = rng.choice(len(self.tiles), 2, replace=False)
        return f"swap {a + 1} {b + 1}"

    def admissible_actions(self) -> list[str]:
        """Return all swaps, each in both orders."""
        places = range(1, len(self.tiles) + 1)
        return [f"swap {a} {b}" for a in places for b in places if a != b]

    def _shown(self) -> str:
        return " ".join(f"{i + 1}:{tile}" for i, tile in enumerate(self.tiles))


@register_text_env("canvas-v0")
class Canvas(Jigsaw):
    """Swap tiles of two letters until they read on as the alphabet. Return 1 then.

    A text version of the jigsaws on which vision-language models are trained.
    Arrangements are split into train and test by their hash.
    """

    def start(self, rng: np.random.Generator, tiles: int = 4) -> str:
        """Draw the letters and the order of the tiles.

        Args:
            rng: Generator of both.
            tiles: Number of tiles, in [3, 9].
        """
        require_int("tiles", tiles, 3, 9)
        while True:
            first = int(rng.integers(len(string.ascii_lowercase) - 2 * tiles + 1))
            letters = string.ascii_lowercase[first : first + 2 * tiles]
            self.whole = [letters[2 * i : 2 * i + 2] for i in range(tiles)]
            self.tiles = [self.whole[i] for i in rng.permutation(tiles)]
            drawn = " ".join(self.tiles)
            if self.tiles != self.whole and in_split(drawn, self.split):
                break
        return (
            "Swap tiles until the letters are in the order of the alphabet. "
            f"Answer as 'swap 1 3'.\n{self._shown()}"
        )
