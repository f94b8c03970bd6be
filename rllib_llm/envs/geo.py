"""Say where a picture was taken: look at its parts, search for what they show."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer

# Parts of a picture, each with the place that it tells, from the largest to the least.
PARTS = {"sign": "country", "plate": "state", "tower": "city"}
_STARTS = ("Ba", "Do", "Fe", "Ga", "Ke", "Li", "Mo", "Nu", "Ra", "Se", "Ti", "Vo")
_ENDS = ("lan", "mir", "nos", "res", "sul", "tam")
_SHARES = (0.0, 0.25, 0.5, 1.0)  # of the reward: nothing, country, state, city


@dataclasses.dataclass(frozen=True)
class Place:
    """A city with its state and country, and the code of each one's mark."""

    names: tuple[str, str, str]  # country, state, city
    codes: tuple[str, str, str]


def letter_codes() -> list[str]:
    """Return all codes of three letters."""
    letters = "BCDFGHJKLMNPQRSTVWXZ"
    return [a + b + c for a in letters for b in letters for c in letters]


@lru_cache(maxsize=8)
def places(
    world: int, count: int = 4, codes: Callable[[], list[str]] = letter_codes
) -> tuple[Place, ...]:
    """Return ``count`` countries with as many states of as many cities each.

    Args:
        world: Seed of names and marks.
        count: Countries, states of each and cities of each, in [1, 4].
        codes: Return all codes that a mark can have.
    """
    rng = np.random.default_rng(world)
    names = [a + b for a in _STARTS for b in _ENDS]
    size = count + count**2 + count**3
    drawn = [str(n) + x for x in ("", "a") for n in rng.permutation(names)][:size]
    marks = [str(c) for c in rng.permutation(codes())[:size]]
    cities = []
    for city in range(count**3):
        index = (
            city // count**2,
            count + city // count,
            count + count**2 + city,
        )
        name = (drawn[index[0]], drawn[index[1]], drawn[index[2]])
        code = (marks[index[0]], marks[index[1]], marks[index[2]])
        cities.append(Place(name, code))
    return tuple(cities)


@register_text_env("geo-v0")
class Geo(ToolOrAnswer):
    """Name the city of a picture. Return 1 for it, 1/2 for its state, 1/4: country.

    ``look`` shows the mark on a part of the picture, ``search`` tells which place has
    a mark. Words stand for the picture. Cities are split into train and test by their
    hash.
    """

    max_turns = 6
    format_hint = (
        "Use <look>sign</look>, <search>BCD</search> or <answer>city</answer>."
    )
    tagged = re.compile(r"<(look|search|answer)>([^<]*)</\1>")

    def start(self, rng: np.random.Generator, world: int = 0) -> str | TurnResult:
        """Draw a city.

        Args:
            rng: Generator of the city.
            world: Seed of all names and marks, >= 0.
        """
        world = require_int("world", world, 0, 2**31 - 1)
        self.begin(rng, places(world))
        parts = ", ".join(PARTS)
        return f"In which city is this? The picture has {parts}. {self.format_hint}"

    def begin(self, rng: np.random.Generator, world: tuple[Place, ...]) -> None:
        """Draw a city of this split from a world that has one."""
        self.world = world
        mine = [p for p in world if in_split(p.names[2], self.split)]
        self.place = mine[int(rng.integers(len(mine)))]
        self._marks: dict[str, str] = {}
        self.level = 0

    def use(self, text: str) -> str:
        """Show a part of the picture, or search for a mark."""
        result = self._look(text) if self.tag == "look" else self._search(text)
        self.used = {"tool": self.tag, "tool_error": result is None}
        return result or "Nothing found."

    def judge(self, answer: str) -> tuple[float, bool]:
        """Rate the smallest place that the answer names rightly."""
        words = set(re.findall(r"[a-z]+", answer.lower()))
        named = [i + 1 for i, n in enumerate(self.place.names) if n.lower() in words]
        self.level = max(named, default=0)
        return _SHARES[self.level], self.level == len(self.place.names)

    def more_info(self) -> dict[str, Any]:
        """Return the level of the answer, 0 to 3, and this turn's tool."""
        used = {"tool": None, "tool_error": False, **self.used}
        return {"level": self.level, "gold_answers": [self.place.names[2]], **used}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Look at the tower, search for its mark, answer."""
        mark = self.place.codes[2]
        if "tower" not in self._marks:
            return "<look>tower</look>"
        if mark not in self._marks:
            return f"<search>{mark}</search>"
        return f"<answer>{self.place.names[2]}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Look at any part, search for any mark, or answer with any city."""
        other = self.world[int(rng.integers(len(self.world)))]
        part = list(PARTS)[int(rng.integers(len(PARTS)))]
        return (
            f"<look>{part}</look>",
            f"<search>{other.codes[2]}</search>",
            f"<answer>{other.names[2]}</answer>",
        )[int(rng.integers(3))]

    def _look(self, part: str) -> str | None:
        part = part.lower()
        if part not in PARTS:
            return None
        self._marks[part] = self.place.codes[list(PARTS).index(part)]
        return f"The {part} shows {self._shown(part)}."

    def _shown(self, part: str) -> str:
        """Return the text that stands for the mark of a part."""
        return self._marks[part]

    def _search(self, mark: str) -> str | None:
        for place in self.world:
            for kind, name, code in zip(
                PARTS.values(), place.names, place.codes, strict=True
            ):
                if code.lower() == mark.lower():
                    self._marks[code] = name
                    return f"{code} is the mark of the {kind} {name}."
        return None
