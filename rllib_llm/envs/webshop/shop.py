"""A shop's catalogue, generated from a seed and searched by BM25."""

from __future__ import annotations

import dataclasses
import random
from functools import cached_property, lru_cache
from typing import Any

from rllib_llm.envs.webshop.families import ATTRIBUTES, FAMILIES, REMARKS, USES, Family
from rllib_llm.retrieval import SearchIndex, shared_index

MAX_RESULTS = 50
"""Maximum number of products that a search returns, as in WebShop."""

_LETTERS = "0123456789abcdefghjklmnpqrstuvwx"  # 32 of them, i.e. 5 bits each
_ODD = 0x9E3779B1  # odd, so that multiplication modulo 2**25 is one-to-one
_SYLLABLES = ("bel", "dor", "fin", "gal", "kos", "lum", "mar", "nor", "ran", "tev")


@dataclasses.dataclass(frozen=True)
class Product:
    """A product in the shop.

    Attributes:
        id: Label of its link.
        family: Family of products.
        type: Two nouns, e.g. "desk lamp".
        brand: A synthetic name, "" in short shops.
        attributes: Its attributes, those that instructions ask for first.
        options: Names and values of the options.
        price: Price, in dollars.
        uses: Nouns at the end of its title; empty in short shops.
        rating: Mean rating of its reviews.
        remarks: Sentences of its reviews.
    """

    id: str
    family: Family
    type: str
    brand: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: float
    uses: tuple[str, ...]
    rating: float
    remarks: tuple[str, ...]

    def title(self, hidden: int = 0) -> str:
        """Return the title.

        Args:
            hidden: Number of attributes that it omits, from the first on.
        """
        words = [self.brand, *self.attributes[hidden:], self.type]
        name = " ".join(filter(None, words))
        if not self.uses:
            return name
        return f"{name} for {', '.join(self.uses[:-1])} and {self.uses[-1]}".title()

    @property
    def nouns(self) -> frozenset[str]:
        """The nouns and proper nouns of the title, in lower case."""
        words = [self.brand, *self.type.split(), *self.uses]
        return frozenset(word.lower() for word in words if word)

    @property
    def category(self) -> tuple[str, ...]:
        """The categories, from the widest to the narrowest."""
        return self.family.department, self.family.name, self.type

    @property
    def text(self) -> str:
        """The searched document; its first word is the id."""
        values = (value for values in self.options.values() for value in values)
        return " ".join(
            [self.id, self.brand, *self.attributes, self.type, *self.uses, *values]
        ).lower()


class Catalogue:
    """The products of a shop.

    Args:
        size: Number of products.
        families: Number of families, from the first of ``FAMILIES`` on.
        seed: Seed of all products.
        short: Whether to use short ids, titles and prices.
    """

    def __init__(self, size: int, families: int, seed: int, short: bool):
        self._key = size, families, seed, short
        made = (_product(i, families, seed, short) for i in range(size))
        self.products = {product.id: product for product in made}

    @cached_property
    def index(self) -> SearchIndex:
        """The search index, stored on disk once per node if it is large."""
        name = f"webshop {self._key}"
        return shared_index(name, lambda: [p.text for p in self.products.values()])

    def search(self, query: str) -> list[Product]:
        """Return the best products, at most ``MAX_RESULTS``, best first."""
        documents = self.index.search(query, MAX_RESULTS)
        return [self.products[text.split(" ", 1)[0]] for text in documents]

    def __reduce__(self) -> tuple[Any, ...]:
        # Snapshots store the arguments instead of a copy of the catalogue.
        return catalogue, self._key


@lru_cache(maxsize=8)
def catalogue(size: int, families: int, seed: int, short: bool) -> Catalogue:
    """Return a catalogue, shared by the environments of a process.

    A smaller catalogue is a subset of a larger one with otherwise equal arguments.
    """
    return Catalogue(size, families, seed, short)


def _product(number: int, families: int, seed: int, short: bool) -> Product:
    """Return a product, which depends on the seed and its number only."""
    rng = random.Random(f"{seed} {number}")
    family = rng.choice(FAMILIES[:families])
    options = {
        name: _some(rng, values, 3 if short else 4)
        for name, values in family.options.items()
    }
    low, high = family.prices
    price = rng.randint(1, 9) if short else round(low * (high / low) ** rng.random(), 2)
    return Product(
        id=f"b{number}" if short else _id(rng, number),
        family=family,
        type=rng.choice(family.types),
        brand="" if short else "".join(rng.sample(_SYLLABLES, 2)).title(),
        attributes=tuple(rng.sample(family.attributes, 2 if short else ATTRIBUTES)),
        options=options,
        price=float(price),
        uses=() if short else tuple(rng.sample(USES, 3)),
        rating=round(rng.uniform(2.5, 5.0), 1),
        remarks=tuple(rng.sample(REMARKS, rng.randint(0, 3))),
    )


def _some(rng: random.Random, values: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Draw values and return them in their original order."""
    kept = rng.sample(values, min(most, len(values)))
    return tuple(value for value in values if value in kept)


def _id(rng: random.Random, number: int) -> str:
    """Return ten letters and digits, five of which encode the scrambled number."""
    scrambled = number * _ODD % 2**25
    letters = [_LETTERS[scrambled >> shift & 31] for shift in (0, 5, 10, 15, 20)]
    return "b0" + "".join([*rng.choices(_LETTERS, k=3), *letters])
