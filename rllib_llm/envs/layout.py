"""Place furniture in a room in text: no collisions, and rules about places."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split

_FURNITURE = ("bed", "desk", "shelf", "sofa", "lamp", "chair")
_PATTERN = re.compile(
    rf"\b({'|'.join(_FURNITURE)})[ \t]+([0-9]{{1,2}})[ \t]+([0-9]{{1,2}})\b",
    re.IGNORECASE,
)
_SIDES = ("west", "north", "east", "south")


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle of unit squares.

    Attributes:
        x: Its westernmost column, from 0.
        y: Its northernmost row, from 0.
        width: Number of columns.
        depth: Number of rows.
    """

    x: int
    y: int
    width: int
    depth: int

    def collides(self, other: Box) -> bool:
        """Return whether both share a square."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.depth
            and other.y < self.y + self.depth
        )

    def fits(self, size: int) -> bool:
        """Return whether it is inside a square room."""
        return self.x + self.width <= size and self.y + self.depth <= size

    def touches(self, side: str, size: int) -> bool:
        """Return whether it is at a wall of a square room."""
        return {
            "west": self.x == 0,
            "north": self.y == 0,
            "east": self.x + self.width == size,
            "south": self.y + self.depth == size,
        }[side]


@dataclasses.dataclass(frozen=True)
class Rule:
    """``thing`` is at the wall ``side``, or on that side of ``other`` if given."""

    thing: str
    side: str
    other: str = ""

    @property
    def text(self) -> str:
        """The rule in words."""
        if self.other:
            return f"{self.thing} {self.side} of {self.other}"
        return f"{self.thing} at the {self.side} wall"

    def holds(self, boxes: Mapping[str, Box], size: int) -> bool:
        """Return whether the placed furniture follows the rule."""
        if self.thing not in boxes or (self.other and self.other not in boxes):
            return False
        mine = boxes[self.thing]
        if not self.other:
            return mine.touches(self.side, size)
        near = boxes[self.other]
        return {
            "west": mine.x + mine.width <= near.x,
            "north": mine.y + mine.depth <= near.y,
            "east": near.x + near.width <= mine.x,
            "south": near.y + near.depth <= mine.y,
        }[self.side]


def physics(boxes: Mapping[str, Box], items: int, size: int) -> float:
    """Return the share of furniture that is inside the room and collides with nothing.

    Args:
        boxes: Placed furniture by name.
        items: Number of all furniture; what is not placed counts as wrong.
        size: Columns and rows of the room.
    """
    good = [
        box.fits(size)
        and not any(box.collides(o) for n, o in boxes.items() if n != name)
        for name, box in boxes.items()
    ]
    return sum(good) / items


@register_text_env("layout-v0")
class Layout(TextEnv):
    """Place all furniture without collisions so that all rules hold. Return 1 then.

    Numbers stand for the picture of the room. A turn is a whole layout, which the next
    one may correct. Tasks are split into train and test by their hash.
    """

    max_turns = 3
    format_hint = "Answer as 'bed 0 1, desk 3 0'."

    def start(
        self,
        rng: np.random.Generator,
        size: int = 5,
        items: int = 2,
        relations: int = 1,
    ) -> str:
        """Draw furniture, and rules that some layout follows.

        Args:
            rng: Generator of all.
            size: Columns and rows of the room, in [4, 9].
            items: Number of furniture, in [2, 4].
            relations: Number of rules about two of them, in [0, 3]; each thing has
                a rule about a wall if it is at one.
        """
        self.size = require_int("size", size, 4, 9)
        require_int("items", items, 2, 4)
        require_int("relations", relations, 0, 3)
        while True:
            self.solution = self._draw(rng, items)
            self.rules = self._draw_rules(rng, relations)
            prompt = (
                f"Room {size} {size}. Place "
                + ", ".join(
                    f"{n} {b.width} {b.depth}" for n, b in self.solution.items()
                )
                + ". Rules: "
                + ", ".join(rule.text for rule in self.rules)
                + "."
            )
            if len(self.rules) >= items and in_split(prompt, self.split):
                break
        self.physics, self.followed = 0.0, 0.0
        return f"{prompt} {self.format_hint}"

    def parse(self, completion: str) -> dict[str, Box] | None:
        """Return the placed furniture, the last mention of each; None without any."""
        self.physics, self.followed = 0.0, 0.0
        boxes = {}
        for name, x, y in _PATTERN.findall(completion):
            given = self.solution.get(name.lower())
            if given is not None:
                boxes[name.lower()] = Box(int(x), int(y), given.width, given.depth)
        return boxes or None

    def reply(self, action: dict[str, Box]) -> TurnResult:
        """Rate a layout, and list what is wrong with it."""
        self.physics = physics(action, len(self.solution), self.size)
        kept = [rule.holds(action, self.size) for rule in self.rules]
        self.followed = float(np.mean(kept))
        if self.physics == self.followed == 1.0:
            return TurnResult("Good!", reward=1.0, terminated=True, success=True)
        return TurnResult("; ".join(self._problems(action)) + ".", success=False)

    def more_info(self) -> dict[str, Any]:
        """Return the two scores of the turn's layout, each in [0, 1]."""
        return {"physics": self.physics, "rules": self.followed}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the layout from which the rules were drawn."""
        return ", ".join(f"{n} {b.x} {b.y}" for n, b in self.solution.items())

    def random_action(self, rng: np.random.Generator) -> str:
        """Return all furniture at random places inside the room."""
        boxes = [self._anywhere(rng, b) for b in self.solution.values()]
        pairs = zip(self.solution, boxes, strict=True)
        return ", ".join(f"{name} {b.x} {b.y}" for name, b in pairs)

    def _problems(self, boxes: Mapping[str, Box]) -> list[str]:
        texts = [f"{n} is missing" for n in self.solution if n not in boxes]
        texts += [f"{n} is outside" for n, b in boxes.items() if not b.fits(self.size)]
        for (a, one), (b, other) in itertools.combinations(boxes.items(), 2):
            if one.collides(other):
                texts.append(f"{a} and {b} collide")
        texts += [f"not {r.text}" for r in self.rules if not r.holds(boxes, self.size)]
        return texts

    def _draw(self, rng: np.random.Generator, items: int) -> dict[str, Box]:
        """Draw furniture that fits, at least one of it at a wall."""
        while True:
            names = [str(n) for n in rng.permutation(_FURNITURE)[:items]]
            sizes = rng.integers(1, 4, (items, 2))
            boxes = {
                name: self._anywhere(rng, Box(0, 0, int(w), int(d)))
                for name, (w, d) in zip(names, sizes, strict=True)
            }
            if physics(boxes, items, self.size) == 1.0:
                return boxes

    def _draw_rules(self, rng: np.random.Generator, relations: int) -> list[Rule]:
        """Return rules that the solution follows: one wall each, then relations."""
        pairs = itertools.permutations(self.solution, 2)
        between = [Rule(a, side, b) for a, b in pairs for side in _SIDES]
        true = [r for r in between if r.holds(self.solution, self.size)]
        # Of a relation and its converse only one is kept.
        true = [true[i] for i in rng.permutation(len(true))]
        chosen = {frozenset((r.thing, r.other)): r for r in true}
        walls = [
            Rule(name, side)
            for name, box in self.solution.items()
            for side in rng.permutation(_SIDES)
            if box.touches(str(side), self.size)
        ]
        first = {rule.thing: rule for rule in reversed(walls)}
        return [*first.values(), *list(chosen.values())[:relations]]

    def _anywhere(self, rng: np.random.Generator, box: Box) -> Box:
        x = int(rng.integers(self.size - box.width + 1))
        y = int(rng.integers(self.size - box.depth + 1))
        return dataclasses.replace(box, x=x, y=y)
