"""Negotiation: divide a pool of items whose worth to the other is unknown."""

from __future__ import annotations

import functools
import itertools
import operator
import re

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_bool, require_int
from rllib_llm.envs.text_env import in_split, register_text_env
from rllib_llm.errors import ConfigError

KINDS = ("book", "hat", "ball")
_WORTH = 10
_MOST_TALK = 200
_MAX_DRAWS = 1_000

Share = tuple[int, ...]


@register_text_env("negotiation-v0")
class Negotiation(MultiAgentTextEnv):
    """Agree who gets which items. Return the worth of one's share, in [0, 1].

    After Lewis et al. 2017 (arXiv:1706.05125): the same pool is worth 10 points to
    each, divided over the kinds in different and private ways. Agents offer in turn
    what they want to keep, or accept; without agreement both get nothing. Success is a
    deal on the Pareto frontier. Instances are split by the hash of counts and values.
    """

    possible_agents = ["alice_0", "bob_0"]
    max_turns = 20
    format_hint = "Please answer as 'keep 1 0 2' or 'accept'."
    _pattern = re.compile(r"\b(?:(accept)|keep((?:[ \t]+[0-9]){2,3}))\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        kinds: int = 2,
        max_count: int = 3,
        offers: int = 4,
        talk: bool = False,
    ) -> None:
        """Draw the pool and what it is worth to each.

        Args:
            rng: Decides the instance.
            kinds: How many kinds of items there are, 2 or 3.
            max_count: The most items of a kind, in [1, 5].
            offers: Offers that can be accepted; one more ends it without a deal, in
                [1, 18].
            talk: Whether an agent reads the other's whole text, 200 characters at most,
                or only its offer.
        """
        require_int("kinds", kinds, 2, len(KINDS))
        require_int("max_count", max_count, 1, 5)
        self.offers = require_int("offers", offers, 1, 18)
        self.talk = require_bool("talk", talk)
        for _ in range(_MAX_DRAWS):
            counts = tuple(int(c) for c in rng.integers(1, max_count + 1, size=kinds))
            values = [_draw_values(counts, rng) for _ in self.possible_agents]
            if None not in values and in_split(f"{counts} {values}", self.split):
                break
        else:
            raise ConfigError(
                f"No {self.split} instance in {_MAX_DRAWS} draws with kinds={kinds}, "
                f"max_count={max_count}. Raise either."
            )
        self.counts = counts
        self.values = dict(zip(self.possible_agents, values, strict=True))
        self.format_hint = f"Please answer as 'keep{' 1' * kinds}' or 'accept'."
        self.made = 0
        self.offer: Share | None = None
        self.text = ""
        self.told: set[str] = set()

    def prompt_for(self, agent: str) -> str:
        """Tell what there is, what one of each is worth, and what was offered."""
        parts = []
        if agent not in self.told:
            self.told.add(agent)
            items = zip(self.counts, KINDS, self.values[agent], strict=False)
            listed = ", ".join(f"{c} {kind} at {v}" for c, kind, v in items)
            parts.append(f"There are {listed}.")
        if self.offer is not None:
            if self.talk:
                parts.append(f"{self._other(agent)}: {self.text}")
            mine = " ".join(map(str, self._rest(self.offer)))
            parts.append(f"{self._other(agent)} leaves you {mine}. Accept, or keep?")
        else:
            parts.append(f"What do you keep? E.g. keep{' 1' * len(self.counts)}.")
        return " ".join(parts)

    def parse(self, agent: str, text: str) -> Share | str | None:
        """Read the last ``accept`` or ``keep <counts>`` that is possible."""
        match = last_match(self._pattern, text)
        if match is None:
            return None
        if match.group(1):
            return "accept" if self.offer is not None else None
        share = tuple(map(int, match.group(2).split()))
        fits = len(share) == len(self.counts)
        if not fits or any(s > c for s, c in zip(share, self.counts, strict=True)):
            return None
        self.text = " ".join(text.split())[-_MOST_TALK:]
        return share

    def apply(self, agent: str, action: Share | str) -> Outcome | None:
        """Strike the deal, or pass the offer on."""
        if action == "accept":
            other = self._other(agent)
            return self._deal({other: self.offer, agent: self._rest(self.offer)})
        self.offer, self.made = action, self.made + 1
        if self.made <= self.offers:
            return None
        return Outcome(terminated=True, success=False, metrics={"deal": 0.0})

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Knowing both sides, offer Nash's solution, and accept what is as good.

        To the last offer it says yes in any case.
        """
        best = max(self._splits(), key=self._nash_product)
        mine = best if agent == self.possible_agents[0] else self._rest(best)
        if self.offer is not None:
            left, last = self._rest(self.offer), self.made == self.offers
            if last or self._worth(agent, left) >= self._worth(agent, mine):
                return "accept"
        return f"keep {' '.join(map(str, mine))}"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Accept every other time, else offer anything."""
        if self.offer is not None and rng.random() < 0.5:
            return "accept"
        return f"keep {' '.join(str(rng.integers(c + 1)) for c in self.counts)}"

    def _deal(self, shares: dict[str, Share]) -> Outcome:
        got = {a: self._worth(a, share) for a, share in shares.items()}
        first = self.possible_agents[0]
        possible = [self._both(split) for split in self._splits()]
        mine = self._both(shares[first])
        better = any(p != mine and min(np.subtract(p, mine)) >= 0 for p in possible)
        metrics = {
            "deal": 1.0,
            "pareto": float(not better),
            "joint_worth": sum(mine) / max(map(sum, possible)),
        }
        return Outcome(got, terminated=True, success=not better, metrics=metrics)

    def _worth(self, agent: str, share: Share) -> float:
        return float(np.dot(self.values[agent], share)) / _WORTH

    def _both(self, split: Share) -> tuple[float, float]:
        """Worth to both, if the first agent gets ``split``."""
        first, second = self.possible_agents
        return self._worth(first, split), self._worth(second, self._rest(split))

    def _nash_product(self, split: Share) -> tuple[float, float]:
        mine, theirs = self._both(split)
        return mine * theirs, mine + theirs  # Nash 1950; ties by the sum

    def _splits(self) -> list[Share]:
        return list(itertools.product(*(range(c + 1) for c in self.counts)))

    def _rest(self, share: Share) -> Share:
        return tuple(c - s for c, s in zip(self.counts, share, strict=True))

    def _other(self, agent: str) -> str:
        return next(a for a in self.possible_agents if a != agent)


def _draw_values(counts: Share, rng: np.random.Generator) -> Share | None:
    """Draw worths per item that make the pool worth 10, or None if none fit."""
    fitting = _fitting_values(counts)
    return fitting[int(rng.integers(len(fitting)))] if fitting else None


@functools.lru_cache(maxsize=256)
def _fitting_values(counts: Share) -> list[Share]:
    every = itertools.product(range(_WORTH + 1), repeat=len(counts))
    return [v for v in every if sum(map(operator.mul, v, counts)) == _WORTH]
