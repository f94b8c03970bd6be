"""Cost and quality of searches: build time, ms per query and hit@5 per engine.

Run:  python benchmarks/retrieval.py
      python benchmarks/retrieval.py --sizes 20000 --engines bm25

The table of docs/retrieval.md. Seconds are CPU seconds of the process. `geonames` are
the passages and queries of search_qa-v0. The other corpora are invented facts; queries
have the form "relation of name", and other passages have the same relation or words of
the name.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from rllib_llm.envs.search_qa_geography import PlaceFact, geography
from rllib_llm.errors import MissingExtraError
from rllib_llm.retrieval import ENGINES

RELATIONS = (
    *("home", "firm", "river", "mayor"),
    *("seat", "boss", "coach", "rival"),  # language: a relation of the corpus
)
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


def main() -> None:
    """Print a line of the table per corpus and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[20_000, 100_000])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--queries", type=int, default=300)
    args = parser.parse_args()
    print(
        "| corpus | passages | engine | build, s | from disk, s | query, ms | hit@5 |"
    )
    print("|---|---|---|---|---|---|---|")
    for size in (0, *args.sizes):
        pairs = made_up(size) if size else real()
        asked = random.Random(1).sample(pairs, min(args.queries, len(pairs)))
        documents = list(dict.fromkeys(text for _, text in pairs))
        for engine in args.engines:
            try:
                cells = measure(engine, documents, asked)
            except MissingExtraError as error:
                print(error)
                continue
            name = "made up" if size else "geonames"
            cells = [name, f"{len(documents):,}", f"`{engine}`", *cells]
            print(f"| {' | '.join(cells)} |", flush=True)


def measure(
    engine: str, documents: list[str], asked: list[tuple[str, str]]
) -> list[str]:
    """Return the last four cells of a line."""
    kind = ENGINES[engine]
    started = time.process_time()
    index = kind(documents)
    built = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder:
        kind.write(documents, Path(folder))
        started = time.process_time()
        kind(documents, Path(folder))
        opened = time.process_time() - started
    started = time.process_time()
    hits = sum(text in index.search(query, 5) for query, text in asked)
    spent = time.process_time() - started
    return [
        f"{built:.2f}",
        f"{opened:.2f}",
        f"{1_000 * spent / len(asked):.2f}",
        f"{hits / len(asked):.3f}",
    ]


def real() -> list[tuple[str, str]]:
    """Return queries of search_qa-v0 and the passages that answer them."""
    world = geography()
    facts = [
        PlaceFact(place, relation, value)
        for place in world.passages
        for relation, value in world.known(place).items()
    ]
    return [(fact.query, fact.text) for fact in facts]


def made_up(size: int) -> list[tuple[str, str]]:
    """Return ``number`` invented queries and the passages that answer them."""
    source = random.Random(0)
    names = sorted(
        {" ".join(_word(source) for _ in range(2)) for _ in range(size)},
    )
    pairs = [
        (
            f"{relation} of {name}",
            f"The {relation} of {name} is {source.choice(names)}, as is well known.",
        )
        for name in names
        for relation in source.sample(RELATIONS, 2)
    ]
    return pairs[:size]


def _word(source: random.Random) -> str:
    return "".join(source.choices(SYLLABLES, k=2)).capitalize()


if __name__ == "__main__":
    main()
