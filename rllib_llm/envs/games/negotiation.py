"""Negotiation: divide a pool of items with private values."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.games.bargain import Pool, Share
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_bool, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.errors import ConfigError

KINDS = ("book", "hat", "ball")
_MOST_TALK = 200
_MAX_DRAWS = 1_000


@register_text_env("negotiation-v0")
class Negotiation(MultiAgentTextEnv):
    """Agree on a division of items. Return the worth of the own share, in [0, 1].

    After Lewis et al. 2017 (arXiv:1706.05125): the same pool is worth 10 points to
    each agent, divided over the kinds in different and private ways. Agents take turns
    to offer a division, or accept; without agreement both get nothing. Success is a
    deal on the Pareto frontier. Instances are split by the hash of counts and values.
    """

    possible_agents = ["alice_0", "bob_0"]
    max_turns = 20
    format_hint = "Please answer as 'keep 1 0 2' or 'accept'."
    _pattern = re.compile(r"\b(?:(accept)|keep((?:[ \t]+[0-9]){2,3}))\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        kinds: int = 3,
        max_count: int = 3,
        offers: int = 4,
        talk: bool = False,
    ) -> None:
        """Draw the pool and its values to both agents.

        Args:
            rng: Generator of the instance.
            kinds: Number of kinds of items, 2 or 3.
            max_count: Maximum number of items of a kind, in [1, 5].
            offers: Number of offers that can be accepted, in [1, 18]; a further offer
                ends the game without a deal.
            talk: Whether an agent reads the other's whole text, 200 characters at most,
                or only its offer.
        """
        require_int("kinds", kinds, 2, len(KINDS))
        require_int("max_count", max_count, 1, 5)
        self.offers = require_int("offers", offers, 1, 18)
        self.talk = require_bool("talk", talk)
        for _ in range(_MAX_DRAWS):
            pool = Pool.draw(rng, kinds, max_count)
            if pool and in_split(f"{pool.counts} {pool.values}", self.split):
                break
        else:
            raise ConfigError(
                f"No {self.split} instance found in {_MAX_DRAWS} draws with kinds="
                f"{kinds}, max_count={max_count}. Raise either of them."
            )
        self.pool = pool
        self.format_hint = f"Please answer as 'keep{' 1' * kinds}' or 'accept'."
        self.made = 0
        self.offer: Share | None = None
        self.text = ""
        self.has_read_pool: set[str] = set()

    def prompt_for(self, agent: str) -> str:
        """Return the pool and the agent's values at first, and the last offer."""
        parts = []
        if agent not in self.has_read_pool:
            self.has_read_pool.add(agent)
            values = self.pool.values[self._side(agent)]
            items = zip(self.pool.counts, KINDS, values, strict=False)
            listed = [f"{c} {kind}{'s' * (c > 1)} at {v}" for c, kind, v in items]
            parts.append(f"Pool: {', '.join(listed)}.")
        if self.offer is not None:
            if self.talk:
                parts.append(f"{self._other(agent)}: {self.text}")
            mine = " ".join(map(str, self.pool.rest(self.offer)))
            parts.append(f"{self._other(agent)} leaves you {mine}. Accept, or keep?")
        else:
            parts.append(f"What do you keep? E.g. keep{' 1' * len(self.pool.counts)}.")
        return " ".join(parts)

    def parse(self, agent: str, text: str) -> Share | str | None:
        """Return the last valid ``accept`` or ``keep <counts>``."""
        match = last_match(self._pattern, text)
        if match is None:
            return None
        if match.group(1):
            return "accept" if self.offer is not None else None
        share = tuple(map(int, match.group(2).split()))
        if len(share) != len(self.pool.counts) or min(self.pool.rest(share)) < 0:
            return None
        self.text = " ".join(text.split())[-_MOST_TALK:]
        return share

    def apply(self, agent: str, action: Share | str) -> Outcome | None:
        """Close the deal, or pass the offer on."""
        if isinstance(action, str):  # "accept"
            assert self.offer is not None, "parse() accepts an offer only."
            taken = self.pool.rest(self.offer)
            return self._deal(taken if self._side(agent) == 0 else self.offer)
        self.offer, self.made = action, self.made + 1
        if self.made <= self.offers:
            return None
        metrics = dict.fromkeys(("deal", "pareto", "joint_worth"), 0.0)
        return Outcome(terminated=True, success=False, metrics=metrics)

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return Nash's solution as an offer, or accept an offer that is as good.

        The expert knows the values of both sides. It accepts the last offer in any
        case, because the alternative is no deal.
        """
        side, split = self._side(agent), self.pool.nash_split()
        mine = split if side == 0 else self.pool.rest(split)
        if self.offer is not None:
            left, last = self.pool.rest(self.offer), self.made == self.offers
            if last or self.pool.worth(side, left) >= self.pool.worth(side, mine):
                return "accept"
        return f"keep {' '.join(map(str, mine))}"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Accept with probability 1/2, else return a random offer."""
        if self.offer is not None and rng.random() < 0.5:
            return "accept"
        return f"keep {' '.join(str(rng.integers(c + 1)) for c in self.pool.counts)}"

    def _deal(self, split: Share) -> Outcome:
        is_best = self.pool.is_pareto_optimal(split)
        metrics = {
            "deal": 1.0,
            "pareto": float(is_best),
            "joint_worth": self.pool.joint_share(split),
        }
        rewards = dict(zip(self.possible_agents, self.pool.both(split), strict=True))
        return Outcome(rewards, terminated=True, success=is_best, metrics=metrics)

    def _side(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _other(self, agent: str) -> str:
        return self.possible_agents[1 - self._side(agent)]
