"""Pictures of token rows: two columns of places, and the pixels of the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.data import columns
from rllib_llm.pictures.spec import ImageSpec

Placed = list[tuple[int, str]]  # column of the first placeholder, and digest


@dataclasses.dataclass(frozen=True)
class BatchPictures:
    """All pictures of a batch; rows refer to them by index.

    Rows are selected and cut without touching it, so that micro-batches share it.

    Attributes:
        pixels: Scaled to the model's size. uint8 [P, size, size, 3]
        count: Placeholders of each picture.
        patches: Positions of the vision tower per picture.
    """

    pixels: np.ndarray
    count: int
    patches: int


def picture_columns(
    rows: Sequence[Placed],
    stores: Sequence[Mapping[str, np.ndarray]],
    spec: ImageSpec,
) -> dict[str, Any]:
    """Return the columns of rows with pictures; none if no row has one.

    Args:
        rows: Places and digests of each row's pictures. [B]
        stores: Pictures of the episode of each row. [B]
        spec: Picture inputs of the model.

    Returns:
        ``picture_starts`` and ``picture_index`` int64 [B, M], -1 where a row has fewer
        than M pictures; ``pictures``, a :class:`BatchPictures`.
    """
    from rllib_llm.pictures.features import fit

    most = max(map(len, rows), default=0)
    if not most:
        return {}
    starts = np.full((len(rows), most), -1, np.int64)
    index = np.full((len(rows), most), -1, np.int64)
    numbers: dict[str, int] = {}
    pixels: list[np.ndarray] = []
    for row, (placed, store) in enumerate(zip(rows, stores, strict=True)):
        for k, (column, name) in enumerate(placed):
            if name not in numbers:
                numbers[name] = len(pixels)
                pixels.append(fit(store[name], spec.size))
            starts[row, k], index[row, k] = column, numbers[name]
    return {
        columns.PICTURE_STARTS: starts,
        columns.PICTURE_INDEX: index,
        columns.PICTURES: BatchPictures(np.stack(pixels), spec.count, spec.patches),
    }
