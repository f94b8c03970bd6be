"""Questions about a world, with the SQL queries that answer them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.envs.sql_agent.world import CONTINENTS, CURRENCIES

Rows = dict[str, list[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its query.

    Attributes:
        text: Text of the question.
        sql: A query whose rows are the answer, in one column.
    """

    text: str
    sql: str


def _any_country(rng: np.random.Generator, rows: Rows) -> str:
    return str(rng.choice([country for _, country, _ in rows["cities"]]))


def _round_number(rng: np.random.Generator, most: int) -> int:
    return 10 * int(rng.integers(2, most // 10))


def _cities_of(rng: np.random.Generator, rows: Rows) -> Question:
    country = _any_country(rng, rows)
    sql = f"SELECT count(*) FROM cities WHERE country = '{country}'"
    return Question(f"How many cities does {country} have?", sql)


def _people_of(rng: np.random.Generator, rows: Rows) -> Question:
    city = rows["cities"][int(rng.integers(len(rows["cities"])))][0]
    sql = f"SELECT people FROM cities WHERE name = '{city}'"
    return Question(f"How many people does the city {city} have?", sql)


def _largest_of(rng: np.random.Generator, rows: Rows) -> Question:
    country = _any_country(rng, rows)
    sql = (
        f"SELECT name FROM cities WHERE country = '{country}' "
        "ORDER BY people DESC LIMIT 1"
    )
    return Question(f"Which city of {country} has the most people?", sql)


def _larger_than(rng: np.random.Generator, rows: Rows) -> Question:
    country, people = _any_country(rng, rows), _round_number(rng, 1000)
    sql = (
        f"SELECT count(*) FROM cities WHERE country = '{country}' AND people > {people}"
    )
    text = f"How many cities of {country} have more than {people} people?"
    return Question(text, sql)


_JOIN = "JOIN countries AS c ON c.name = cities.country"


def _cities_on(rng: np.random.Generator, rows: Rows) -> Question:
    continent, people = str(rng.choice(CONTINENTS)), _round_number(rng, 1000)
    sql = (
        f"SELECT count(*) FROM cities {_JOIN} "
        f"WHERE continent = '{continent}' AND people > {people}"
    )
    text = f"How many cities on {continent} have more than {people} people?"
    return Question(text, sql)


def _currency_of(rng: np.random.Generator, rows: Rows) -> Question:
    city = rows["cities"][int(rng.integers(len(rows["cities"])))][0]
    sql = f"SELECT currency FROM cities {_JOIN} WHERE cities.name = '{city}'"
    return Question(f"What is the currency of the city {city}?", sql)


def _people_paying(rng: np.random.Generator, rows: Rows) -> Question:
    currency, people = str(rng.choice(CURRENCIES)), _round_number(rng, 1000)
    sql = (
        f"SELECT sum(people) FROM cities {_JOIN} "
        f"WHERE currency = '{currency}' AND people < {people}"
    )
    text = (
        f"How many people live in cities of less than {people} people "
        f"whose currency is the {currency}?"
    )
    return Question(text, sql)


def _continent_with_most(rng: np.random.Generator, rows: Rows) -> Question:
    people = _round_number(rng, 1000)
    sql = (
        f"SELECT continent FROM cities {_JOIN} WHERE people > {people} "
        "GROUP BY continent ORDER BY count(*) DESC, continent LIMIT 1"
    )
    text = (
        f"Which continent has the most cities of more than {people} people? "
        "Of several, name the first by alphabet."
    )
    return Question(text, sql)


def _countries_with(rng: np.random.Generator, rows: Rows) -> Question:
    km, people = _round_number(rng, 500), _round_number(rng, 1000)
    sql = (
        f"SELECT DISTINCT country FROM rivers WHERE km > {km} AND country NOT IN "
        f"(SELECT country FROM cities WHERE people > {people})"
    )
    text = (
        f"Which countries have a river longer than {km} km, "
        f"but no city of more than {people} people?"
    )
    return Question(text, sql)


def _mean_near(rng: np.random.Generator, rows: Rows) -> Question:
    km = _round_number(rng, 500)
    sql = (
        "SELECT round(avg(people)) FROM cities WHERE country IN "
        f"(SELECT country FROM rivers WHERE km > {km})"
    )
    text = (
        "How many people do cities have on average, rounded, in countries with a river "
        f"longer than {km} km?"
    )
    return Question(text, sql)


Family = Callable[[np.random.Generator, Rows], Question]
LEVELS: dict[int, tuple[Family, ...]] = {
    1: (_cities_of, _people_of, _largest_of, _larger_than),
    2: (_cities_on, _currency_of, _people_paying),
    3: (_continent_with_most, _countries_with, _mean_near),
}


def draw_question(rng: np.random.Generator, level: int, rows: Rows) -> Question:
    """Return a question of a level about a world with these rows."""
    families = LEVELS[level]
    return families[int(rng.integers(len(families)))](rng, rows)
