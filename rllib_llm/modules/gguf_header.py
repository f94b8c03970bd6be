"""Headers of GGUF files: metadata and tensor table, read without the tensors' data.

Every process of a run checks its model's file. The package gguf reads all tokens and
merges one by one: 3.3 to 3.6 CPU seconds for SmolLM2's 98 MB, where this reader, which
skips them, takes 0.05 (2026-11-22).
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
import os
import struct
from pathlib import Path
from typing import Any

from rllib_llm.errors import MissingExtraError, ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# struct formats of the scalar types, by the number that the file stores.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_ALIGNMENT = 32
_LONGEST_STRING = 2**26  # bytes; a longer one means that the length is damaged
_MOST_DIMENSIONS = 8


@dataclasses.dataclass(frozen=True)
class GGUFHeader:
    """Metadata and size of a GGUF file.

    Attributes:
        metadata: Values by key; an array is represented by its number of entries.
        tensors: Names of the tensors.
        size: Bytes that the whole file has at least.
    """

    metadata: dict[str, Any]
    tensors: tuple[str, ...]
    size: int

    @property
    def architecture(self) -> str:
        """The architecture's name in llama.cpp, e.g. ``"llama"``."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def context_length(self) -> int | None:
        """Positions of the model; None if the file does not say."""
        length = self.metadata.get(f"{self.architecture}.context_length")
        return None if length is None else int(length)


def read_header(path: Path) -> GGUFHeader:
    """Return the header of a GGUF file and check that the file is whole.

    Raises:
        ModelError: If the file is not GGUF, or is damaged or shorter than it says.
        MissingExtraError: If the package gguf is not installed.
    """
    stat = path.stat()
    return _read_header(os.fspath(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read_header(path: str, size: int, _mtime_ns: int) -> GGUFHeader:
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError as error:
        raise MissingExtraError.for_extra("gguf", "gguf") from error
    if not size:
        raise _damaged(path, "it is empty")
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:4] != _MAGIC:
            raise ModelError(
                f"language_model.model={path!r} does not begin with {_MAGIC!r}, so it "
                "is no GGUF file. Use a GGUF file, a checkpoint folder or a hub id."
            )
        try:
            header = _Parser(data, 4).header(GGML_QUANT_SIZES)
        except (struct.error, ValueError) as error:
            raise _damaged(path, str(error)) from error
    if size < header.size:
        raise _damaged(path, f"it has {size} bytes of at least {header.size}")
    return header


def _damaged(path: str, why: str) -> ModelError:
    return ModelError(
        f"language_model.model={path!r} is not a readable GGUF file: {why}. Copy or "
        "download it again."
    )


class _Parser:
    """Parser of the bytes of a GGUF file.

    Args:
        data: The file.
        position: Offset of the next byte to read.
    """

    def __init__(self, data: mmap.mmap, position: int):
        self._data = data
        self._position = position

    def header(self, quant_sizes: dict[Any, tuple[int, int]]) -> GGUFHeader:
        """Return the header.

        Args:
            quant_sizes: Elements and bytes of a block, by type of tensor.
        """
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise ValueError(f"its version {version} is none of {_VERSIONS}")
        num_tensors, num_entries = self._scalar("<Q"), self._scalar("<Q")
        metadata = {}
        for _ in range(num_entries):
            key = self._string()
            metadata[key] = self._value(self._scalar("<I"))
        names, end = [], 0
        for _ in range(num_tensors):
            name, last = self._tensor(quant_sizes)
            names.append(name)
            end = max(end, last)
        alignment = int(metadata.get("general.alignment", _ALIGNMENT)) or _ALIGNMENT
        start = -(-self._position // alignment) * alignment
        return GGUFHeader(metadata, tuple(names), start + end)

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._skip_string()
        return self._data[self._position - length : self._position].decode("utf-8")

    def _skip_string(self) -> int:
        length = self._scalar("<Q")
        if length > _LONGEST_STRING or self._position + length > len(self._data):
            raise ValueError(f"a text of {length} bytes does not end within the file")
        self._position += length
        return length

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._skip_array()
        if kind not in _SCALARS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _skip_array(self) -> int:
        kind, count = self._scalar("<I"), self._scalar("<Q")
        if kind == _STRING:
            for _ in range(count):
                self._skip_string()
        elif kind in _SCALARS:
            self._position += count * struct.calcsize(_SCALARS[kind])
        else:
            raise ValueError(f"an array has the unknown type {kind}")
        return count

    def _tensor(self, quant_sizes: dict[Any, tuple[int, int]]) -> tuple[str, int]:
        """Return a tensor's name and the end of its data after the data's begin."""
        name, dimensions = self._string(), self._scalar("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= self._scalar("<Q")
        kind, offset = self._scalar("<I"), self._scalar("<Q")
        if kind not in quant_sizes:
            raise ValueError(f"tensor {name!r} has the unknown type {kind}")
        block, block_bytes = quant_sizes[kind]
        return name, offset + elements // block * block_bytes
