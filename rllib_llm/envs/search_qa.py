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
from rllib_llm.graders.texts import exact_match, word_f1
from rllib_llm.retrieval import ENGINES

_T = TypeVar("_T")


@register_text_env("search_qa-v0")
class SearchQA(SearchGame):
    """Search passages on countries and cities, then answer. Return 1 if right.

    Questions go over one to three facts, each about what the one before names, or
    compare two cities. Countries and cities that questions of the test split name are
    named in no question of the training split; those on the way may be any.
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
            rng: Decides the question, and what is shown besides what was found.
            hops: Facts that a question goes over, in [1, 3].
            comparisons: Share of questions that compare two cities instead.
            results: Passages that a search finds, in [1, 5].
            distractors: Random passages among them, in [0, 5].
            noise: Chance that a search shows random passages alone, in [0, 1).
            reward: "exact_match" or "f1", of words as SQuAD normalises them.
            engine: Of the search: "bm25", or "tantivy" (extra ``search``).
        """
        require_int("hops", hops, 1, 3)
        require_float("comparisons", comparisons, 0, 1)
        self.results = require_int("results", results, 1, 5)
        self.distractors = require_int("distractors", distractors, 0, 5)
        self.noise = require_float("noise", noise, 0, 0.99)
        self.paid = require_choice("reward", reward, ("exact_match", "f1"))
        self.engine = require_choice("engine", engine, tuple(ENGINES))
        index(self.engine)  # what is missing, is missed now
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
        """Return the best passages, or random ones, and distractors among them."""
        found = index(self.engine).search(query, self.results)
        if not found:
            return []
        if self._rng.random() < self.noise:
            found = self._any_passages(len(found), without=found)
        if self.distractors:
            found = found + self._any_passages(self.distractors, without=found)
            self._rng.shuffle(found)
        return found

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare words."""
        right = self.gold_answers()[0]
        is_right = exact_match(answer, right)
        paid = word_f1(answer, right) if self.paid == "f1" else float(is_right)
        return paid, is_right

    def gold_answers(self) -> list[str]:
        """Return the last fact's value, or the city of more people."""
        if self.compares:
            return [max(self.chain, key=lambda fact: int(fact.value)).entity]
        return super().gold_answers()

    def any_fact(self, rng: np.random.Generator) -> facts.Fact:
        """Return any fact about a city or country."""
        places = geography().facts if rng.random() < 0.5 else geography().country
        return _walk(rng, _pick(rng, list(places)), hops=1)[0]

    def random_action(self, rng: np.random.Generator) -> str:
        """Search for any fact, or answer with any value, or a city that is compared."""
        if self.compares and rng.random() < 0.5:
            return f"<answer>{_pick(rng, self.chain).entity}</answer>"
        return super().random_action(rng)

    def _any_passages(self, count: int, without: list[str]) -> list[str]:
        """Draw passages, none of them one of ``without``."""
        passages = index(self.engine).documents
        drawn = self._rng.choice(len(passages), count + len(without), replace=False)
        return [passages[i] for i in drawn if passages[i] not in without][:count]

    def _draw_chain(self, rng: np.random.Generator, hops: int) -> list[PlaceFact]:
        """Draw a chain that begins with a place of the split."""
        if hops == 1 and rng.random() < 0.5:
            countries = [c for c in geography().facts if in_split(c, self.split)]
            return _walk(rng, _pick(rng, countries), hops)
        return _walk(rng, self._city(rng, hops), hops)

    def _draw_pair(self, rng: np.random.Generator) -> list[PlaceFact]:
        """Draw two cities of the split, one with more people than the other."""
        people, pair = geography().people, []
        while len(pair) < 2:
            city = self._city(rng, hops=1)
            number = str(people[city])
            if all(fact.value != number for fact in pair):
                pair.append(PlaceFact(city, "people", number))
        return pair

    def _city(self, rng: np.random.Generator, hops: int) -> str:
        """Draw a city to begin with, that of every country equally often."""
        starts = _starts(self.split, beside=hops == 3)
        return _pick(rng, starts[_pick(rng, list(starts))])


@lru_cache(maxsize=4)
def _starts(split: str, beside: bool) -> dict[str, list[str]]:
    """Return the cities of a split, by country; ``beside``: where it has neighbours."""
    world, found = geography(), {}
    for country, cities in world.cities.items():
        mine = [city for city in cities if in_split(city, split)]
        if mine and (NEIGHBOUR in world.facts[country] or not beside):
            found[country] = mine
    return found


def _walk(rng: np.random.Generator, place: str, hops: int) -> list[PlaceFact]:
    """Return a chain of facts from a place on, over neighbours after countries."""
    chain: list[PlaceFact] = []
    for left in reversed(range(hops)):
        known = geography().known(place)
        on_the_way = left and NEIGHBOUR in known
        relation = NEIGHBOUR if on_the_way else _pick(rng, list(known))
        chain.append(PlaceFact(place, relation, known[relation]))
        place = known[relation]
    return chain


def _pick(rng: np.random.Generator, items: Sequence[_T]) -> _T:
    return items[int(rng.integers(len(items)))]
