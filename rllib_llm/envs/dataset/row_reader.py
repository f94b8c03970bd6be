"""Rows of JSON Lines files by place, and texts about rows that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError

# Place of a row: number of its file, bytes of the line, and position of the line.
ENTRY = np.dtype([("file", "<i4"), ("length", "<i4"), ("offset", "<i8")])
_MAX_IN_ERRORS = 5
_MAX_IN_REPORTS = 50

_Row = TypeVar("_Row")


class RowReader(Generic[_Row]):
    """Reads rows by their places; safe in threads.

    Args:
        files: JSON Lines files.
        parse: Returns a line's content; raises RowError.
    """

    def __init__(self, files: Sequence[Path], parse: Callable[[bytes], _Row]):
        self._files, self._parse = list(files), parse
        self._opened = [os.open(file, os.O_RDONLY) for file in files]

    def read(self, entry: np.void) -> _Row:
        """Return the content of a row.

        Args:
            entry: Its place, of dtype ``ENTRY``.

        Raises:
            ConfigError: The file has changed since the place was noted.
        """
        file, length, offset = entry.tolist()
        # pread() has no position that threads would share.
        line = os.pread(self._opened[file], length, offset)
        try:
            return self._parse(line)
        except RowError as error:
            raise ConfigError(
                f"{self._files[file]} has changed while it is in use: {error} "
                "Start the run again."
            ) from error


class RowNotes:
    """Notes on rows, of which the first 50 are kept and all are counted.

    Attributes:
        first: The first ones, each with its place.
    """

    def __init__(self) -> None:
        self.first: list[str] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, note: str) -> None:
        """Add a note."""
        self._count += 1
        if len(self.first) < _MAX_IN_REPORTS:
            self.first.append(note)

    def report(self, title: str) -> list[str]:
        """Return lines of a report: the first notes, and the number of the others."""
        lines = [f"{title}: {note}" for note in self.first]
        more = len(self) - len(lines)
        return [*lines, f"... and {more:,} more"] if more else lines


def describe_problems(problems: RowNotes, count: int, use: str) -> str:
    """Return an error message with the first problems.

    Args:
        problems: Place and reason of each row that cannot be used.
        count: Number of all rows.
        use: The verb and object of the sentence, e.g. "be tasks".
    """
    more = len(problems) - _MAX_IN_ERRORS
    return (
        f"{len(problems):,} of {count:,} rows cannot {use}.\n"
        + "\n".join(f"  {problem}" for problem in problems.first[:_MAX_IN_ERRORS])
        + (f"\n  ... and {more:,} more" if more > 0 else "")
        + f"\n'rllib-llm check FILE' lists the first {_MAX_IN_REPORTS}."
    )
