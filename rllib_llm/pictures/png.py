"""PNG files of pictures, without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from rllib_llm.pictures.contract import Pictures
from rllib_llm.pictures.placement import PictureRef

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 48 * 1024  # of a picture in a transcript


def png(picture: np.ndarray) -> bytes:
    """Return a picture as a PNG file (8 bits, RGB, not interlaced).

    Args:
        picture: uint8 [height, width, 3].
    """
    height, width, _ = picture.shape
    # Each line begins with the number of its filter; 0 is none.
    lines = np.zeros((height, 1 + 3 * width), np.uint8)
    lines[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes())
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
    )


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
