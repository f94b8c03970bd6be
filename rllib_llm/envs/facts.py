"""A fictional world: entities, relations, one document per fact, and a search.

The facts are not true anywhere, so that no model can answer from memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from rllib_llm.retrieval import BM25

# Number of entities of each kind, and their relations to other kinds.
_COUNTS = {"person": 80, "town": 40, "firm": 40}
_RELATIONS = {
    "person": {"home": "town", "firm": "firm"},
    "town": {"river": "river", "mayor": "person"},
    "firm": {"seat": "town", "boss": "person"},  # language: read by the model
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
        """The document that states the fact."""
        return f"The {self.relation} of {self.entity} is {self.value}."

    @property
    def query(self) -> str:
        """A search query for the fact."""
        return f"{self.relation} of {self.entity}"


def question(chain: Sequence[Fact]) -> str:
    """Return e.g. "What is the river of the home of Kelam?"."""
    relations = " of the ".join(fact.relation for fact in reversed(chain))
    return f"What is the {relations} of {chain[0].entity}?"


def masked_text(of: Sequence[Fact]) -> str:
    """Return e.g. "Fill in: The river of Ratal is [1]. The home of Zanos is [2]."."""
    sentences = [
        f"The {fact.relation} of {fact.entity} is [{number}]."
        for number, fact in enumerate(of, start=1)
    ]
    return f"Fill in: {' '.join(sentences)}"


class World:
    """Facts about entities, and a search over their documents.

    Args:
        seed: Seed of every name and fact.
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
        # Snapshots of environments store the seed instead of a copy of the world.
        return world, (self.seed,)

    def chains(self, entity: str, hops: int) -> list[list[Fact]]:
        """Return all chains of facts of this length that start at an entity."""
        firsts = [f for (e, _), f in self.facts.items() if e == entity]
        if hops == 1:
            return [[f] for f in firsts]
        return [[f, *rest] for f in firsts for rest in self.chains(f.value, hops - 1)]


@lru_cache(maxsize=4)
def world(seed: int) -> World:
    """Return the world of a seed, shared by the environments of a process."""
    return World(seed)
