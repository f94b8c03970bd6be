"""Digests of prompts, by which duplicates and held-out rows are found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from rllib_llm.envs.dataset.dataset_rows import DatasetRow
from rllib_llm.envs.dataset.growing_array import GrowingArray

_PROMPT = np.dtype(
    [("digest", "<u8"), ("answer", "<u8"), ("file", "<i4"), ("line", "<i8")]
)
Place = tuple[int, int]
"""Number of a file, and number of the line in it."""


def prompt_digest(row: DatasetRow, pictures: Sequence[str]) -> int:
    """Return a digest of 64 bits that is equal for duplicates.

    Case and spaces of the texts do not count; pictures are compared by their files.

    Args:
        row: The task.
        pictures: Digest of the file of each picture.
    """
    texts = [*(message["content"] for message in row.preceding), row.prompt]
    compared = [" ".join(text.split()).lower() for text in texts]
    return _digest(json.dumps([*compared, *pictures]))


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class PromptDigests:
    """Digests of the prompts of many rows, 28 bytes each."""

    def __init__(self) -> None:
        self._prompts = GrowingArray(_PROMPT)

    def add(self, digest: int, answer: object, place: Place) -> None:
        """Add a row.

        Args:
            digest: Its :func:`prompt_digest`.
            answer: Its answer.
            place: Its file and line.
        """
        self._prompts.append((digest, _digest(repr(answer)), *place))

    def shared_with(
        self, other: PromptDigests
    ) -> tuple[int, Iterator[tuple[Place, Place]]]:
        """Return the number of prompts in both, and their first places, in order."""
        ours, theirs = self._prompts.array(), other._prompts.array()
        _, mine, others = np.intersect1d(
            ours["digest"], theirs["digest"], return_indices=True
        )
        order = np.argsort(mine)
        pairs = zip(mine[order], others[order], strict=True)
        return len(mine), ((_place(ours[i]), _place(theirs[j])) for i, j in pairs)

    def repeated(self) -> Iterator[tuple[Place, Place, bool]]:
        """Yield each row whose prompt an earlier row has, in order.

        Yields:
            Its place, that of the first row with the prompt, and whether both have the
            same answer.
        """
        prompts = self._prompts.array()
        _, first, group = np.unique(
            prompts["digest"], return_index=True, return_inverse=True
        )
        first_of_row = first[group]
        for row in np.flatnonzero(first_of_row != np.arange(len(prompts))):
            this, earlier = prompts[row], prompts[first_of_row[row]]
            is_same = bool(this["answer"] == earlier["answer"])
            yield _place(this), _place(earlier), is_same


def _place(prompt: np.void) -> Place:
    return int(prompt["file"]), int(prompt["line"])
