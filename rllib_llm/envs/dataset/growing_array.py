"""Array to which elements are appended, without a Python object per element."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike


class GrowingArray:
    """One-dimensional array that doubles its capacity when it is full.

    Args:
        dtype: Type of its elements; a structured one takes tuples.
    """

    def __init__(self, dtype: DTypeLike):
        self._elements = np.empty(64, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, element: object) -> None:
        """Append an element."""
        if self._size == len(self._elements):
            self._elements = np.concatenate(
                [self._elements, np.empty_like(self._elements)]
            )
        self._elements[self._size] = element
        self._size += 1

    def array(self) -> np.ndarray:
        """Return the elements, without a copy. [number of elements]"""
        return self._elements[: self._size]
