"""PNG files of pictures."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from rllib_llm.pictures.contract import Pictures
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
