"""A small made-up world: entities, relations, one document per fact, and a search.

Nothing of it is true anywhere, so no model knows it beforehand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from rllib_llm.retrieval import BM25

# Kinds of entities, how many there are, and their relations to other kinds.
_COUNTS = {"person": 80, "town": 40, "firm": 40}
_RELATIONS = {
    "person": {"home": "town", "firm": "firm"},
    "town": {"river": "river", "mayor": "person"},
    "firm": {"seat": "town", "boss": "person"},
}
_RIVERS = 30
_STARTS = ("ba", "do", "fe", "ga", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "za")
_MIDDLES = ("la", "mi", "no", "re", "su", "ta")
_ENDS = ("l", "m", "n", "r", "s")


@dataclasses.dataclass(frozen=True)
class Fact:
    """``relation`` of ``entity`` is ``value``."""

    entity: str
    relation: str
    value: str

    @property
    def text(self) -> str:
        """The document that says it."""
        return f"The {self.relation} of {self.entity} is {self.value}."

    @property
    def query(self) -> str:
        """The words that find it."""
        return f"{self.relation} of {self.entity}"


def question(chain: Sequence[Fact]) -> str:
    """Return e.g. "What is the river of the home of Kelam?"."""
    relations = " of the ".join(fact.relation for fact in reversed(chain))
    return f"What is the {relations} of {chain[0].entity}?"


class World:
    """Facts about entities, and a search over their documents.

    Args:
        seed: Decides every name and fact.
    """

    def __init__(self, seed: int = 0):
        self.seed = seed
        rng = np.random.default_rng(seed)
        names = [a + b + c for a in _STARTS for b in _MIDDLES for c in _ENDS]
        rng.shuffle(names)
        made = iter(name.capitalize() for name in names)
        self.entities = {k: [next(made) for _ in range(n)] for k, n in _COUNTS.items()}
        values = {**self.entities, "river": [next(made) for _ in range(_RIVERS)]}
        self.facts = {
            (entity, relation): Fact(entity, relation, str(rng.choice(values[of])))
            for kind, entities in self.entities.items()
            for entity in entities
            for relation, of in _RELATIONS[kind].items()
        }
        self.index = BM25([fact.text for fact in self.facts.values()])

    def __reduce__(self) -> tuple[Callable[[int], World], tuple[int]]:
        # Snapshots of environments name the world, instead of copying it.
        return world, (self.seed,)

    def chains(self, entity: str, hops: int) -> list[list[Fact]]:
        """Return all chains of facts of this length that begin at an entity."""
        firsts = [f for (e, _), f in self.facts.items() if e == entity]
        if hops == 1:
            return [[f] for f in firsts]
        return [[f, *rest] for f in firsts for rest in self.chains(f.value, hops - 1)]


@lru_cache(maxsize=4)
def world(seed: int) -> World:
    """Return the world of a seed; environments of a process share it."""
    return World(seed)
