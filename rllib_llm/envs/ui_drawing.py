"""Drawings of the screens of ``ui_pictures-v0``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rllib_llm.envs.ui_apps import KINDS, LABELS, Element

LETTERS_FROM = 128
"""Least height of a picture, in pixels, in which labels are written."""

BACKGROUND = (255, 255, 255)
INK = (0, 0, 0)
_LEVELS = (0, 64, 128, 192, 255)  # of red, green and blue
_VALUE = (0.55, 0.95)  # left and right of a value, as parts of the box
_STRIPE = 0.08  # width of the stripe that shows the kind, as a part of the box

Colour = tuple[int, int, int]
Area = tuple[int, int, int, int]  # left, top, and the ends right and bottom; pixels


def apart(count: int) -> list[Colour]:
    """Return distinct colours that are far from each other, white and black.

    Each is the one of a lattice whose distance to the nearest of those before it is
    greatest, and the first of them.

    Args:
        count: Number of colours, in [1, 100].
    """
    lattice = np.array(list(itertools.product(_LEVELS, repeat=3)))
    chosen = [np.array(BACKGROUND), np.array(INK)]
    for _ in range(count):
        gaps = np.linalg.norm(lattice[:, None] - np.array(chosen), axis=-1)  # [L, C]
        chosen.append(lattice[gaps.min(axis=1).argmax()])
    return [(int(r), int(g), int(b)) for r, g, b in chosen[2:]]


COLOURS = dict(zip(LABELS, apart(len(LABELS)), strict=True))
"""Colour of the box of each label."""


def draw(elements: Sequence[Element], pixels: int) -> np.ndarray:
    """Return the picture of a screen.

    Args:
        elements: The elements that it shows.
        pixels: Height and width, in [32, 512].

    Returns:
        uint8 [pixels, pixels, 3].
    """
    picture = np.full((pixels, pixels, 3), BACKGROUND, np.uint8)
    areas = [_area(element.box, pixels) for element in elements]
    for element, area in zip(elements, areas, strict=True):
        _fill(picture, area, np.array([COLOURS[element.label]]))
        _fill(picture, _part(area, 0.0, _STRIPE), np.array([_shade(element.kind)]))
        if element.value:
            _draw_value(picture, element.value, _part(area, *_VALUE))
    return _written(picture, elements, areas) if pixels >= LETTERS_FROM else picture


def _area(box: tuple[int, int, int, int], pixels: int) -> Area:
    """Return the pixels of a box in percent, whose ends are included."""
    left, top, right, bottom = box
    return (
        left * pixels // 100,
        top * pixels // 100,
        (right + 1) * pixels // 100,
        (bottom + 1) * pixels // 100,
    )


def _part(area: Area, left: float, right: float) -> Area:
    """Return the columns of an area between two parts of its width, at least one."""
    width = area[2] - area[0]
    start = area[0] + int(left * width)
    return (start, area[1], max(start + 1, area[0] + int(right * width)), area[3])


def _fill(picture: np.ndarray, area: Area, colours: np.ndarray) -> None:
    """Fill an area with columns of about equal width. colours: [columns, 3]"""
    left, top, right, bottom = area
    columns = np.arange(right - left) * len(colours) // (right - left)
    picture[top:bottom, left:right] = colours[columns]


def _shade(kind: str) -> Colour:
    """Return the grey of a kind of elements."""
    level = 255 * KINDS.index(kind) // (len(KINDS) - 1)
    return (level, level, level)


def _draw_value(picture: np.ndarray, value: str, area: Area) -> None:
    """Draw a switch's state as a bright or dark mark, and a text as stripes.

    A large picture gets a bright or dark area for the letters.
    """
    is_large = len(picture) >= LETTERS_FROM
    margin = (area[3] - area[1]) // (8 if is_large else 4)
    inner = (area[0], area[1] + margin, area[2], area[3] - margin)
    if is_large or value in ("on", "off"):
        _fill(picture, inner, np.array([INK if value == "off" else BACKGROUND]))
        return
    # One grey per letter, so that words differ; the order of letters is kept.
    levels = np.array([ord(letter) * 37 % 256 for letter in value])
    _fill(picture, inner, np.repeat(levels[:, None], 3, axis=1))


def _written(
    picture: np.ndarray, elements: Sequence[Element], areas: Sequence[Area]
) -> np.ndarray:
    """Return a picture with the labels and values in letters."""
    from PIL import Image, ImageDraw, ImageFont  # not needed for small pictures

    image = Image.fromarray(picture)
    pen = ImageDraw.Draw(image)
    for element, area in zip(elements, areas, strict=True):
        size = max(8, (area[3] - area[1]) * 7 // 10)
        font = ImageFont.load_default(size)
        middle = (area[1] + area[3]) // 2
        for text, left, ground in (
            (element.label, 0.12, COLOURS[element.label]),
            (element.value, 0.6, INK if element.value == "off" else BACKGROUND),
        ):
            ink = INK if np.dot(ground, (0.3, 0.59, 0.11)) > 128 else BACKGROUND
            place = (_part(area, left, 1.0)[0], middle)
            pen.text(place, text, fill=ink, font=font, anchor="lm")
    return np.asarray(image)
