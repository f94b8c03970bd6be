"""Answer questions about countries and cities with the help of a search tool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np

from rllib_llm.envs import facts
from rllib_llm.envs.parsing import require_choice, require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.search_facts import SearchGame
from rllib_llm.envs.search_qa_geography import NEIGHBOUR, PlaceFact, geography, index
from rllib_llm.envs.text_env import in_split
from rllib_llm.graders.short_answers import exact_match, word_f1
from rllib_llm.retrieval import ENGINES

_T = TypeVar("_T")


@register_text_env("search_qa-v0")
class SearchQA(SearchGame):
    """Search passages on countries and cities, then answer. Return 1 if right.

    Questions need one to three facts, each about the value of the one before, or
    compare two cities. The questions of the two splits name different countries and
    cities; any place may occur on the way.
    """

    max_turns = 5

    def start(
        self,
        rng: np.random.Generator,
        hops: int = 2,
        comparisons: float = 0.0,
        results: int = 2,
        distractors: int = 0,
        noise: float = 0.0,
        reward: str = "exact_match",
        engine: str = "bm25",
    ) -> str:
        """Draw a question.

        Args:
            rng: Generator of the question, of noise and of distractors.
            hops: Number of facts that a question needs, in [1, 3].
            comparisons: Share of questions that compare two cities instead.
            results: Number of passages that a search returns, in [1, 5].
            distractors: Number of random passages added to them, in [0, 5].
            noise: Probability that a search shows random passages only, in [0, 1).
            reward: "exact_match" or "f1", on words normalised as in SQuAD.
            engine: Search engine: "bm25", or "tantivy" (extra ``search``).
        """
        require_int("hops", hops, 1, 3)
        require_float("comparisons", comparisons, 0, 1)
        self.results = require_int("results", results, 1, 5)
        self.distractors = require_int("distractors", distractors, 0, 5)
        self.noise = require_float("noise", noise, 0, 0.99)
        self.reward_kind = require_choice("reward", reward, ("exact_match", "f1"))
        self.engine = require_choice("engine", engine, tuple(ENGINES))
        index(self.engine)  # a missing extra must fail here, not in the first search
        self._rng = rng
        self.begin()
        self.compares = bool(rng.random() < comparisons)
        if self.compares:
            self.chain = self._draw_pair(rng)
            first, second = (fact.entity for fact in self.chain)
            return f"Which city has more people, {first} or {second}?"
        self.chain = self._draw_chain(rng, hops)
        return facts.question(self.chain)

    def find(self, query: str) -> list[str]:
        """Return the best passages, or random ones, mixed with distractors."""
        passages = index(self.engine).search(query, self.results)
        if not passages:
            return []
        if self._rng.random() < self.noise:
            passages = self._any_passages(len(passages), without=passages)
        if self.distractors:
            passages = passages + self._any_passages(self.distractors, without=passages)
            self._rng.shuffle(passages)
        return passages

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare the answer's words with the right ones."""
        right = self.gold_answers()[0]
        is_right = exact_match(answer, right)
        reward = word_f1(answer, right) if self.reward_kind == "f1" else float(is_right)
        return reward, is_right

    def gold_answers(self) -> list[str]:
        """Return the last fact's value, or the more populous city."""
        if self.compares:
            return [max(self.chain, key=lambda fact: int(fact.value)).entity]
        return super().gold_answers()

    def any_fact(self, rng: np.random.Generator) -> facts.Fact:
        """Return any fact about a city or country."""
        places = geography().facts if rng.random() < 0.5 else geography().country
        return _walk(rng, _pick(rng, list(places)), hops=1)[0]

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a search, any value as the answer, or one of two compared cities."""
        if self.compares and rng.random() < 0.5:
            return f"<answer>{_pick(rng, self.chain).entity}</answer>"
        return super().random_action(rng)

    def _any_passages(self, count: int, without: list[str]) -> list[str]:
        """Draw passages, except those of ``without``."""
        passages = index(self.engine).documents
        drawn = self._rng.choice(len(passages), count + len(without), replace=False)
        return [passages[i] for i in drawn if passages[i] not in without][:count]

    def _draw_chain(self, rng: np.random.Generator, hops: int) -> list[PlaceFact]:
        """Draw a chain that starts at a place of the split."""
        if hops == 1 and rng.random() < 0.5:
            countries = [c for c in geography().facts if in_split(c, self.split)]
            return _walk(rng, _pick(rng, countries), hops)
        return _walk(rng, self._city(rng, hops), hops)

    def _draw_pair(self, rng: np.random.Generator) -> list[PlaceFact]:
        """Draw two cities of the split with different populations."""
        people = geography().people
        pair: list[PlaceFact] = []
        while len(pair) < 2:
            city = self._city(rng, hops=1)
            number = str(people[city])
            if all(fact.value != number for fact in pair):
                pair.append(PlaceFact(city, "people", number))
        return pair

    def _city(self, rng: np.random.Generator, hops: int) -> str:
        """Draw a first city, with equal probability for every country."""
        starts = _starts(self.split, beside=hops == 3)
        return _pick(rng, starts[_pick(rng, list(starts))])


@lru_cache(maxsize=4)
def _starts(split: str, beside: bool) -> dict[str, list[str]]:
    """Return the cities of a split by country; ``beside``: with neighbours only."""
    world, cities_by_country = geography(), {}
    for country, cities in world.cities.items():
        mine = [city for city in cities if in_split(city, split)]
        if mine and (NEIGHBOUR in world.facts[country] or not beside):
            cities_by_country[country] = mine
    return cities_by_country


def _walk(rng: np.random.Generator, place: str, hops: int) -> list[PlaceFact]:
    """Return a chain of facts from a place; after a country follow its neighbour."""
    chain: list[PlaceFact] = []
    for left in reversed(range(hops)):
        values = geography().relations(place)
        on_the_way = left and NEIGHBOUR in values
        relation = NEIGHBOUR if on_the_way else _pick(rng, list(values))
        chain.append(PlaceFact(place, relation, values[relation]))
        place = values[relation]
    return chain


def _pick(rng: np.random.Generator, items: Sequence[_T]) -> _T:
    return items[int(rng.integers(len(items)))]
