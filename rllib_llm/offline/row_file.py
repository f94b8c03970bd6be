"""Rows of data files as an endless sequence, checked line by line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.envs.dataset.row_files import cache_key, local_files, numbered_lines
from rllib_llm.envs.dataset.row_reader import (
    ENTRY,
    RowReader,
    describe_problems,
    report_lines,
)
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import Parser, parser_of
from rllib_llm.seeding import stable_seed


class RowFile:
    """Rows of data files, read from disk by number; 16 bytes per row in memory.

    Args:
        paths: Files, as of :func:`rllib_llm.envs.dataset.row_files.local_files`.
        parse: Returns a line's content; raises RowError.

    Raises:
        ConfigError: A file or a row cannot be used, or there are no rows.
    """

    def __init__(self, paths: Sequence[str], parse: Parser):
        files = local_files(paths)
        entries, problems = [], []
        for entry, problem in _scan(files, parse):
            entries.append(entry)
            if problem:
                problems.append(problem)
        if problems:
            raise ConfigError(describe_problems(problems, len(entries), "be used"))
        if not entries:
            raise ConfigError(f"files={list(paths)}: they have no rows. Give others.")
        self._entries = np.array(entries, ENTRY)
        self._reader: RowReader[Any] = RowReader(files, parse)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._entries)

    def __getitem__(self, number: int) -> Any:
        """Return the content of a row.

        Raises:
            ConfigError: The file has changed since it was opened.
        """
        return self._reader.read(self._entries[number])

    def in_passes(self, seed: int, first: int, count: int) -> list[Any]:
        """Return the rows ``first`` to ``first + count`` of an endless sequence.

        It has every row once per pass, in a new random order each.

        Args:
            seed: Determines the orders.
            first: Number of the first one in the sequence, >= 0.
            count: Number of rows.
        """
        rows, orders = [], {}
        for number in range(first, first + count):
            turn, place = divmod(number, len(self))
            if turn not in orders:
                rng = np.random.default_rng(stable_seed(seed, "rows", turn))
                orders[turn] = rng.permutation(len(self))
            rows.append(self[int(orders[turn][place])])
        return rows


def _scan(
    files: Sequence[Path], parse: Parser
) -> Iterator[tuple[tuple[int, int, int], str]]:
    """Yield file, length and offset of each row, and why it cannot be used, or ""."""
    for number, file in enumerate(files):
        for line, offset, text in numbered_lines(file):
            problem = ""
            try:
                parse(text)
            except RowError as error:
                problem = f"{file.name}, line {line}: {error}"
            yield (number, len(text), offset), problem


@dataclasses.dataclass(frozen=True, slots=True)
class StoredRowsReport:
    """Contents of a file of conversations or preference pairs.

    Attributes:
        num_rows: Number of lines that are not blank.
        problems: Lines that cannot be trained on, with the reason.
    """

    num_rows: int
    problems: list[str]

    @property
    def ok(self) -> bool:
        """True if there are rows and all can be trained on."""
        return not self.problems and self.num_rows > 0

    def __str__(self) -> str:
        good = self.num_rows - len(self.problems)
        first = f"{good:,} of {self.num_rows:,} rows can be trained on (data.files)"
        return "\n".join([first, *report_lines("error", self.problems)])


def check_stored_rows(path: str) -> StoredRowsReport | None:
    """Return what is wrong with a file's rows; None if they are tasks.

    The first row tells what kind of rows the file has.

    Raises:
        ConfigError: The file cannot be read.
    """
    files = local_files([path])
    parse = parser_of(_first_columns(files))
    if parse is None:
        return None
    problems = [problem for _, problem in _scan(files, parse)]
    return StoredRowsReport(len(problems), [each for each in problems if each])


def _first_columns(files: Sequence[Path]) -> list[str]:
    for file in files:
        for _, _, text in numbered_lines(file):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                return []
            return list(row) if isinstance(row, dict) else []
    return []


def open_rows(files: str | Sequence[str], parse: Parser) -> RowFile:
    """Return the rows of files, which are read once per process unless they change.

    Args:
        files: A path or several; see :class:`RowFile`.
        parse: A function of the module, which is part of the key of opened files.

    Raises:
        ConfigError: A file or a row cannot be used.
    """
    paths = (files,) if isinstance(files, str) else tuple(files)
    return _opened(paths, parse, cache_key(local_files(paths)))


@lru_cache(maxsize=8)
def _opened(paths: tuple[str, ...], parse: Parser, key: str) -> RowFile:
    return RowFile(paths, parse)
