"""A shop's catalogue: made from a seed, searched by BM25, one per process."""

from __future__ import annotations

import dataclasses
import random
from functools import cached_property, lru_cache
from typing import Any

from rllib_llm.envs.webshop.families import ATTRIBUTES, FAMILIES, REMARKS, USES, Family
from rllib_llm.retrieval import SearchIndex, shared_index

FOUND = 50
"""Products that a search finds at most, as in WebShop."""

_LETTERS = "0123456789abcdefghjklmnpqrstuvwx"  # 32 of them
_ODD = 0x9E3779B1  # multiplied by it, numbers below 2**25 stay different
_SYLLABLES = ("bel", "dor", "fin", "gal", "kos", "lum", "mar", "nor", "ran", "tev")


@dataclasses.dataclass(frozen=True)
class Product:
    """Something that can be bought.

    Attributes:
        id: What its link is called.
        family: Its family.
        type: Two nouns, e.g. "desk lamp".
        brand: A made-up name, "" in short shops.
        attributes: What holds of it; what instructions ask for stands first.
        options: Names and values that can be chosen.
        price: In dollars.
        uses: Nouns at the end of its title, none in short shops.
        rating: Of its reviews.
        remarks: What its reviews say.
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
        """Return its title.

        Args:
            hidden: How many attributes, counted from the first, it leaves out.
        """
        said = [self.brand, *self.attributes[hidden:], self.type]
        name = " ".join(filter(None, said))
        if not self.uses:
            return name
        return f"{name} for {', '.join(self.uses[:-1])} and {self.uses[-1]}".title()

    @property
    def nouns(self) -> frozenset[str]:
        """The nouns and proper nouns of its title, in lower case."""
        said = [self.brand, *self.type.split(), *self.uses]
        return frozenset(word.lower() for word in said if word)

    @property
    def category(self) -> tuple[str, ...]:
        """From the widest category to the narrowest."""
        return self.family.department, self.family.name, self.type

    @property
    def text(self) -> str:
        """What the search reads; its first word is the id."""
        values = (value for values in self.options.values() for value in values)
        return " ".join(
            [self.id, self.brand, *self.attributes, self.type, *self.uses, *values]
        ).lower()


class Catalogue:
    """The products of a shop.

    Args:
        size: How many.
        families: How many kinds, from the first of ``FAMILIES`` on.
        seed: Decides everything about them.
        short: Short ids, titles and prices.
    """

    def __init__(self, size: int, families: int, seed: int, short: bool):
        self._key = size, families, seed, short
        made = (_product(i, families, seed, short) for i in range(size))
        self.products = {product.id: product for product in made}

    @cached_property
    def index(self) -> SearchIndex:
        """The search; big ones lie on disk, once per node."""
        name = f"webshop {self._key}"
        return shared_index(name, lambda: [p.text for p in self.products.values()])

    def search(self, query: str) -> list[Product]:
        """Return the best products, at most ``FOUND``, best first."""
        found = self.index.search(query, FOUND)
        return [self.products[text.split(" ", 1)[0]] for text in found]

    def __reduce__(self) -> tuple[Any, ...]:
        return catalogue, self._key  # snapshots name it


@lru_cache(maxsize=8)
def catalogue(size: int, families: int, seed: int, short: bool) -> Catalogue:
    """Return a catalogue; environments of a process share it.

    A smaller one is part of a larger one that is otherwise like it.
    """
    return Catalogue(size, families, seed, short)


def _product(number: int, families: int, seed: int, short: bool) -> Product:
    """Make a product from its number alone."""
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
    """Draw values, and keep them in their order."""
    kept = rng.sample(values, min(most, len(values)))
    return tuple(value for value in values if value in kept)


def _id(rng: random.Random, number: int) -> str:
    """Return ten letters and digits, of which five are the number's, scrambled."""
    scrambled = number * _ODD % 2**25
    letters = [_LETTERS[scrambled >> shift & 31] for shift in (0, 5, 10, 15, 20)]
    return "b0" + "".join([*rng.choices(_LETTERS, k=3), *letters])
