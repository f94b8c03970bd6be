"""Pictures of rows: files beside the data file, or the bytes of such files."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from rllib_llm.envs.dataset.dataset_rows import DatasetRow, RowError
from rllib_llm.errors import summarize
from rllib_llm.schema import show

# Formats that Pillow decodes itself; for others it may start programs.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 16 * 2**20
MAX_PIXELS = 2**24
_DATA_URL = "data:image/"


def check_pictures(row: DatasetRow) -> list[str]:
    """Read all pictures of a row, and return a digest of each file's bytes.

    Raises:
        RowError: One of them cannot be read.
    """
    digests = []
    for source in (source for sources in row.pictures for source in sources):
        data = _file_bytes(source, row.folder)
        _decoded(data, source)
        digests.append(hashlib.blake2b(data, digest_size=16).hexdigest())
    return digests


def read_picture(source: object, folder: Path | None) -> np.ndarray:
    """Return a picture, upright and without transparency. uint8 [height, width, 3]

    Args:
        source: Path of a file, a ``data:`` URL, or an object with ``bytes`` (base64)
            or ``path``.
        folder: Folder that relative paths refer to; None: they are refused.

    Raises:
        RowError: The file does not exist, is too large or is not a picture.
    """
    return _decoded(_file_bytes(source, folder), source)


def _file_bytes(source: object, folder: Path | None) -> bytes:
    """Return the bytes of a picture's file."""
    if isinstance(source, Mapping):
        stored = source.get("bytes")
        if isinstance(stored, Mapping):  # bytes of a binary column, see row_files
            stored = stored.get("bytes")
        if isinstance(stored, str):
            return _from_base64(stored, source)
        source = source.get("path")
    if not isinstance(source, str) or not source:
        raise RowError(
            f"picture {show(source, 40)} must be the path of a file, a data URL, or an "
            "object with 'bytes' or 'path'."
        )
    if source.startswith(_DATA_URL):
        return _from_base64(source.partition(",")[2], source)
    if "://" in source:
        raise RowError(
            f"picture {show(source, 80)} is an address. Download it, and give the path "
            "of the file."
        )
    return _from_file(source, folder)


def _from_file(name: str, folder: Path | None) -> bytes:
    path = Path(name).expanduser()
    if folder is None and not path.is_absolute():
        raise RowError(
            f"picture {show(name, 80)} is a relative path, and datasets of the hub "
            "have no folder. Use a dataset whose pictures are in its rows."
        )
    path = path if folder is None else folder / path
    try:
        if not path.is_file():
            raise RowError(f"picture {show(str(path), 120)} does not exist.")
        if path.stat().st_size > MAX_BYTES:
            raise RowError(
                f"picture {show(str(path), 120)} has more than {MAX_BYTES:,} bytes. "
                "Scale it down."
            )
        return path.read_bytes()
    except OSError as error:
        raise RowError(
            f"picture {show(str(path), 120)} cannot be read: {summarize(error)}."
        ) from None


def _from_base64(text: str, source: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RowError(f"picture {show(source, 40)} is not valid base64.") from None


def _decoded(data: bytes, source: object) -> np.ndarray:
    name = show(source, 80)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MAX_PIXELS:
                raise RowError(
                    f"picture {name} has {width} x {height} pixels; at most "
                    f"{MAX_PIXELS:,} are read. Scale it down."
                )
            return np.array(ImageOps.exif_transpose(opened).convert("RGB"))
    # Decoders of damaged files raise any of these.
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise _unreadable(name, error) from None
    except ValueError as error:
        if isinstance(error, RowError):
            raise
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: BaseException) -> RowError:
    return RowError(
        f"picture {name} cannot be decoded ({summarize(error)}). Formats: "
        f"{', '.join(FORMATS)}."
    )
