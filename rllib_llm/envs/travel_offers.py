"""Cached offers of ``travel-v0``: transport, hotels and sights of made-up cities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache

import numpy as np

_CITIES = ("Balan", "Domir", "Fenos", "Gares", "Lisul", "Motam")
KINDS = ("museum", "park", "tower")
_OFFERS = 3  # of transport between two cities, and hotels in a city


@dataclasses.dataclass(frozen=True)
class Offer:
    """One offer.

    Attributes:
        code: A letter (T, H or S) and a number.
        place: Two cities such as ``Balan-Domir`` for transport, else a city.
        price: Its price, 0 for sights.
        hour: Arrival of transport, closing time of a sight, 0 for hotels.
        kind: The kind of a sight, else "".
    """

    code: str
    place: str
    price: int = 0
    hour: int = 0
    kind: str = ""

    @property
    def text(self) -> str:
        """Its line in a tool's result."""
        if self.code[0] == "T":
            return f"{self.code} arrives {self.hour} costs {self.price}"
        if self.code[0] == "H":
            return f"{self.code} costs {self.price}"
        return f"{self.code} {self.kind} closes {self.hour}"


@dataclasses.dataclass(frozen=True)
class Wish:
    """A trip and its constraints; None for those that do not apply.

    Attributes:
        route: The two cities, such as ``Balan-Domir``.
        kind: The kind of sight.
        by: Latest arrival, an hour.
        most: Largest price of the hotel.
        open_sight: Whether the sight must be open on arrival.
        budget: Largest sum of all prices.
    """

    route: str
    kind: str
    by: int | None = None
    most: int | None = None
    open_sight: bool = False
    budget: int | None = None

    @property
    def city(self) -> str:
        """The city to go to."""
        return self.route.split("-")[1]

    def text(self) -> str:
        """Return the wish in words."""
        start, city = self.route.split("-")
        parts = [f"Go from {start} to {city}"]
        if self.by is not None:
            parts.append(f"arrive by {self.by}")
        if self.most is not None:
            parts.append(f"sleep for at most {self.most}")
        before = " before it closes" if self.open_sight else ""
        parts.append(f"see a {self.kind}{before}")
        if self.budget is not None:
            parts.append(f"spend at most {self.budget}")
        return ", ".join(parts) + "."

    def is_met(self, transport: Offer, hotel: Offer, sight: Offer) -> bool:
        """Return whether three offers make this trip and keep all constraints."""
        places = (self.route, self.city, self.city)
        offers = (transport, hotel, sight)
        if tuple(o.place for o in offers) != places or sight.kind != self.kind:
            return False
        return (
            (self.by is None or transport.hour <= self.by)
            and (self.most is None or hotel.price <= self.most)
            and (not self.open_sight or transport.hour < sight.hour)
            and (self.budget is None or sum(o.price for o in offers) <= self.budget)
        )


class Offers:
    """All offers of a seed, by code and by place.

    Args:
        seed: Seed of all offers.
    """

    def __init__(self, seed: int):
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.by_code: dict[str, Offer] = {}
        self.routes = [f"{a}-{b}" for a in _CITIES for b in _CITIES if a != b]
        self.cities = _CITIES
        for route in self.routes:
            for hour in sorted(rng.choice(np.arange(8, 20), _OFFERS, replace=False)):
                self._add("T", route, price=_price(rng), hour=int(hour))
        for city in _CITIES:
            for price in sorted(rng.choice(np.arange(2, 10), _OFFERS, replace=False)):
                self._add("H", city, price=10 * int(price))
            for kind in KINDS:
                self._add("S", city, hour=int(rng.integers(12, 23)), kind=kind)

    def __reduce__(self) -> tuple[Callable[[int], Offers], tuple[int]]:
        # Snapshots of environments store the seed instead of a copy of the offers.
        return offers_of, (self.seed,)

    def at(self, letter: str, place: str) -> list[Offer]:
        """Return the offers of a letter at a place, ignoring case."""
        wanted = place.strip(" .").lower()
        return [
            o
            for o in self.by_code.values()
            if o.code[0] == letter and o.place.lower() == wanted
        ]

    def plans(self, wish: Wish) -> list[tuple[Offer, Offer, Offer]]:
        """Return all plans that meet a wish."""
        return [
            (t, h, s)
            for t in self.at("T", wish.route)
            for h in self.at("H", wish.city)
            for s in self.at("S", wish.city)
            if wish.is_met(t, h, s)
        ]

    def _add(
        self, letter: str, place: str, price: int = 0, hour: int = 0, kind: str = ""
    ) -> None:
        number = 1 + sum(code[0] == letter for code in self.by_code)
        code = f"{letter}{number}"
        self.by_code[code] = Offer(code, place, price, hour, kind)


def _price(rng: np.random.Generator) -> int:
    return 10 * int(rng.integers(1, 10))


@lru_cache(maxsize=8)
def offers_of(seed: int) -> Offers:
    """Return the offers of a seed, made once."""
    return Offers(seed)
