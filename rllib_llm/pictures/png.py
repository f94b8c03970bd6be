"""PNG files of pictures, and pictures in records of JSON."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from PIL import Image

from rllib_llm.pictures.contract import Pictures, digest
from rllib_llm.pictures.placement import PictureRef

_MOST_BYTES = 48 * 1024  # of a picture in a transcript


def png(picture: np.ndarray) -> bytes:
    """Return a picture as a PNG file.

    Args:
        picture: uint8 [height, width, 3].
    """
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def picture_records(
    refs: tuple[PictureRef, ...], pictures: Pictures
) -> list[dict[str, Any]]:
    """Return a turn's pictures as a transcript holds them.

    Args:
        refs: The turn's pictures.
        pictures: Pixels by digest.

    Returns:
        ``digest`` and ``png`` of each, the file in base64; None in its place if it is
        longer than 48 KiB.
    """
    records = []
    for ref in refs:
        file = png(pictures[ref.digest])
        text = base64.b64encode(file).decode() if len(file) <= _MOST_BYTES else None
        records.append({"digest": ref.digest, "png": text})
    return records


def packed(pictures: Pictures) -> list[dict[str, str]]:
    """Return pictures as values of JSON: ``digest`` and ``png`` (in base64) of each."""
    return [
        {"digest": name, "png": base64.b64encode(png(picture)).decode()}
        for name, picture in pictures.items()
    ]


def unpacked(records: Iterable[Mapping[str, str]]) -> Pictures:
    """Return the pictures of :func:`packed`'s result.

    Raises:
        ValueError: One is no PNG file, or has another digest than it says.
    """
    pictures: Pictures = {}
    for record in records:
        name = record["digest"]
        try:
            file = io.BytesIO(base64.b64decode(record["png"], validate=True))
            with Image.open(file, formats=("PNG",)) as image:
                pictures[name] = np.array(image.convert("RGB"))
        except (OSError, ValueError) as error:
            raise ValueError(f"the picture {name} is no PNG file: {error}") from error
        if digest(pictures[name]) != name:
            raise ValueError(f"the picture {name} has another digest than it says.")
    return pictures


def packed_refs(refs: Iterable[PictureRef]) -> list[dict[str, Any]]:
    """Return places of pictures as values of JSON."""
    return [{"digest": r.digest, "start": r.start, "count": r.count} for r in refs]


def unpacked_refs(records: Iterable[Mapping[str, Any]]) -> tuple[PictureRef, ...]:
    """Return the places of :func:`packed_refs`'s result."""
    return tuple(PictureRef(r["digest"], r["start"], r["count"]) for r in records)
