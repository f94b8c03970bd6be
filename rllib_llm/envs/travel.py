"""Plan a trip from cached offers; a verifier checks the plan and its sources."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer
from rllib_llm.envs.travel_offers import KINDS, Offer, Wish, offers_of

_LETTERS = {"transport": "T", "hotels": "H", "sights": "S"}
_CODE = re.compile(r"\b[THS][0-9]{1,3}\b", re.IGNORECASE)


@register_text_env("travel-v0")
class Travel(ToolOrAnswer):
    """Answer with one transport, hotel and sight. Return 1 if the verifier accepts.

    The verifier checks the whole plan against the constraints, and whether a tool of
    this episode has shown each of its parts. Offers are made up and fixed by a seed;
    wishes are split into train and test by their hash.
    """

    max_turns = 6
    format_hint = (
        "Use <transport>A-B</transport>, <hotels>B</hotels>, <sights>B</sights> or "
        "<answer>T1 H1 S1</answer>."
    )
    tagged = re.compile(r"<(transport|hotels|sights|answer)>([^<]*)</\1>")

    def start(
        self, rng: np.random.Generator, constraints: int = 4, world: int = 0
    ) -> str:
        """Draw a wish that some plan meets.

        Args:
            rng: Generator of the wish.
            constraints: Number of constraints in [0, 4], in this order: arrival,
                price of the hotel, a sight that is open on arrival, sum of prices.
            world: Seed of the offers, >= 0.
        """
        count = require_int("constraints", constraints, 0, 4)
        self.offers = offers_of(require_int("world", world, 0, 2**31 - 1))
        while True:
            self.wish = self._draw(rng, count)
            plans = self.offers.plans(self.wish)
            if plans and in_split(self.wish.text(), self.split):
                break
        self._shown: set[str] = set()
        self.feasible, self.consistent = 0.0, 0.0
        return f"{self.wish.text()} {self.format_hint}"

    def use(self, text: str) -> str:
        """Return the offers at a place."""
        offers = self.offers.at(_LETTERS[self.tag], text)
        self._shown |= {o.code for o in offers}
        self.used = {"tool": self.tag, "tool_error": not offers}
        return "\n".join(o.text for o in offers) or "Nothing found."

    def judge(self, answer: str) -> tuple[float, bool]:
        """Verify the trip as a whole, then the source of each part."""
        plan = self._plan(answer)
        self.feasible = float(plan is not None and self.wish.is_met(*plan))
        codes = [code.upper() for code in _CODE.findall(answer)]
        seen = [code in self._shown for code in codes]
        self.consistent = float(np.mean(seen)) if seen else 0.0
        is_right = self.feasible == self.consistent == 1.0
        return float(is_right), is_right

    def more_info(self) -> dict[str, Any]:
        """Return both checks of the plan, and this turn's tool."""
        used = {"tool": None, "tool_error": False, **self.used}
        return {"feasible": self.feasible, "consistent": self.consistent, **used}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the queries that are missing, then the first plan that fits."""
        plan = self.offers.plans(self.wish)[0]
        for tool, offer in zip(_LETTERS, plan, strict=True):
            if offer.code not in self._shown:
                return f"<{tool}>{offer.place}</{tool}>"
        return f"<answer>{' '.join(o.code for o in plan)}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any query about the trip's cities, or any of the offers there."""
        tool = str(rng.choice([*_LETTERS, "answer"]))
        place = self.wish.route if tool == "transport" else self.wish.city
        if tool != "answer":
            return f"<{tool}>{place}</{tool}>"
        places = (self.wish.route, self.wish.city, self.wish.city)
        options = [
            self.offers.at(letter, where)
            for letter, where in zip(_LETTERS.values(), places, strict=True)
        ]
        drawn = [some[int(rng.integers(len(some)))].code for some in options]
        return f"<answer>{' '.join(drawn)}</answer>"

    def _draw(self, rng: np.random.Generator, count: int) -> Wish:
        """Draw a trip, and constraints that one of its plans meets."""
        route = str(rng.choice(self.offers.routes))
        wish = Wish(route, str(rng.choice(KINDS)))
        plans = self.offers.plans(wish)
        transport, hotel, sight = plans[int(rng.integers(len(plans)))]
        total = transport.price + hotel.price + sight.price
        return Wish(
            wish.route,
            wish.kind,
            by=transport.hour + int(rng.integers(3)) if count > 0 else None,
            most=hotel.price + int(rng.integers(2)) * 5 if count > 1 else None,
            open_sight=count > 2,
            budget=total + int(rng.integers(3)) * 10 if count > 3 else None,
        )

    def _plan(self, answer: str) -> tuple[Offer, Offer, Offer] | None:
        """Return the plan of an answer, or None without one offer of each kind."""
        codes = [code.upper() for code in _CODE.findall(answer)]
        offers = [self.offers.by_code.get(code) for code in codes]
        letters = "".join(sorted(code[0] for code in codes))
        named = sorted((o for o in offers if o), key=lambda o: "THS".index(o.code[0]))
        if letters != "HST" or len(named) != len(codes):
            return None
        return named[0], named[1], named[2]
