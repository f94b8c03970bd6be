"""A small made-up world: entities, relations, one document per fact, and a search.

Nothing of it is true anywhere, so no model knows it beforehand.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

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
_K1, _B = 1.5, 0.75  # BM25's usual constants


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


class World:
    """Facts about entities, and a search over their documents.

    Args:
        seed: Decides every name and fact.
    """

    def __init__(self, seed: int = 0):
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

    def chains(self, entity: str, hops: int) -> list[list[Fact]]:
        """Return all chains of facts of this length that begin at an entity."""
        firsts = [f for (e, _), f in self.facts.items() if e == entity]
        if hops == 1:
            return [[f] for f in firsts]
        return [[f, *rest] for f in firsts for rest in self.chains(f.value, hops - 1)]


class BM25:
    """Ranks documents by their words (Robertson and Zaragoza 2009, eq. 3.15).

    Args:
        documents: Texts; words are lower case, without punctuation at their ends.
    """

    def __init__(self, documents: Sequence[str]):
        self.documents = list(documents)
        counts = [Counter(words(text)) for text in self.documents]
        lengths = np.array([c.total() for c in counts])
        norms = _K1 * (1 - _B + _B * lengths / lengths.mean())
        where: dict[str, list[int]] = {}
        for i, count in enumerate(counts):
            for word in count:
                where.setdefault(word, []).append(i)
        # Each word's documents, and what it adds to their scores.
        self._scores = {}
        for word, found in where.items():
            idf = math.log(1 + (len(counts) - len(found) + 0.5) / (len(found) + 0.5))
            tf = np.array([counts[i][word] for i in found])
            self._scores[word] = found, idf * tf * (_K1 + 1) / (tf + norms[found])

    def search(self, query: str, results: int) -> list[str]:
        """Return the best documents that share a word with the query, best first."""
        scores = np.zeros(len(self.documents))
        for word in words(query):
            if word in self._scores:
                found, more = self._scores[word]
                scores[found] += more
        best = np.argsort(-scores, kind="stable")[:results]
        return [self.documents[i] for i in best if scores[i] > 0]


def words(text: str) -> list[str]:
    """Return a text's words as the search compares them."""
    return [w for w in (w.strip(".,;:!?'\"") for w in text.lower().split()) if w]


@lru_cache(maxsize=4)
def world(seed: int) -> World:
    """Return the world of a seed; environments of a process share it."""
    return World(seed)
