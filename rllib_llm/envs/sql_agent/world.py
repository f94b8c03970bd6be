"""A fictional world as a database: countries, their cities and rivers."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import lru_cache
from typing import Any

import numpy as np

# Tables by level; each level includes the tables of the levels below it.
TABLES = (
    ("cities", "name, country, people"),
    ("countries", "name, continent, currency"),
    ("rivers", "name, country, km"),
)
CONTINENTS = ("Aru", "Besk", "Ciro")
CURRENCIES = ("florin", "krone", "mark")
_NUM_COUNTRIES, _NUM_CITIES, _NUM_RIVERS = 6, 24, 10
_STARTS = ("ba", "do", "fe", "ga", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "za")
_MIDDLES = ("la", "mi", "no", "re", "su", "ta")
_ENDS = ("l", "m", "n", "r", "s")


@lru_cache(maxsize=256)
def world(seed: int, level: int) -> tuple[bytes, dict[str, list[tuple[Any, ...]]]]:
    """Return a world: its database as bytes, and the rows of each table.

    Args:
        seed: Seed of all names and numbers.
        level: Number of tables, in [1, 3].
    """
    rng = np.random.default_rng(seed)
    names = [(a + b + c).capitalize() for a in _STARTS for b in _MIDDLES for c in _ENDS]
    rng.shuffle(names)
    made = iter(names)
    countries = [
        (next(made), str(rng.choice(CONTINENTS)), str(rng.choice(CURRENCIES)))
        for _ in range(_NUM_COUNTRIES)
    ]

    def placed(count: int, most: int) -> list[tuple[Any, ...]]:
        # Distinct numbers, so that questions for the largest have one answer.
        numbers = rng.choice(np.arange(10, most), size=count, replace=False)
        owners = rng.integers(_NUM_COUNTRIES, size=count)
        return [
            (next(made), countries[int(owner)][0], int(number))
            for owner, number in zip(owners, numbers, strict=True)
        ]

    rows = {
        "cities": placed(_NUM_CITIES, 1000),
        "countries": countries,
        "rivers": placed(_NUM_RIVERS, 500),
    }
    rows = {name: rows[name] for name, _ in TABLES[:level]}
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        for name, columns in TABLES[:level]:
            database.execute(f"CREATE TABLE {name} ({columns})")
            database.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows[name])
        database.commit()
        return database.serialize(), rows


def schema(level: int) -> str:
    """Return the tables of a level as a prompt shows them."""
    return ", ".join(f"{name}({columns})" for name, columns in TABLES[:level])
