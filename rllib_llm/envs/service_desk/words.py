"""Names of customers, items and streets."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "Ada Ben Cora Dan Eva Finn Gina Hugo Ida Jan Kira Leo Mia Nils Olga Paul"
)
LAST_NAMES = _words(
    "Bell Cole Dorn Eck Ford Gray Hale Irwin Kern Lund Moss Nash Orr Page"
)
ITEMS = _words("mug cap lamp chair bag scarf clock vase rug tent radio kettle")
COLOURS = _words("red blue green black white brown pink grey")
STREETS = _words("Elm Oak Pine Ash Birch Maple")
