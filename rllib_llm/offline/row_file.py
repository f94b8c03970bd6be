"""Rows of data files as an endless sequence, checked line by line."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.envs.dataset.growing_array import GrowingArray
from rllib_llm.envs.dataset.row_files import (
    DataFile,
    cache_key,
    data_files,
    local_files,
    numbered_lines,
)
from rllib_llm.envs.dataset.row_reader import (
    ENTRY,
    RowNotes,
    RowReader,
    describe_problems,
)
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import (
    ROWS_WITH_PICTURES,
    Parser,
    parser_of,
)
from rllib_llm.offline.episode_rows import StoredEpisode
from rllib_llm.offline.removed_texts import without_text
from rllib_llm.seeding import stable_seed


class RowFile:
    """Rows of data files, read from disk by number; 16 bytes per row in memory.

    Args:
        paths: Files, as of :func:`rllib_llm.envs.dataset.row_files.local_files`.
        parse: Returns a line's content; raises RowError.
        min_return: Saved episodes with a lower return are left out; None: none are.
        remove: Regular expression of a text that is left out of prompts, or None.

    Attributes:
        has_removed: Whether a row has such a text.
        has_pictures: Whether a row shows pictures.

    Raises:
        ConfigError: A file or a row cannot be used, or there are no rows.
    """

    has_removed = False
    has_pictures = False

    def __init__(
        self,
        paths: Sequence[str],
        parse: Parser,
        min_return: float | None = None,
        remove: str | None = None,
    ):
        files = data_files(paths)
        entries, problems, count = GrowingArray(ENTRY), RowNotes(), 0
        if remove is not None:
            parse = functools.partial(self._parse_without, parse, remove)
        for entry, problem, episode_return, row in _scan(files, parse, min_return):
            count += 1
            self.has_pictures |= _has_pictures(row)
            if problem:
                problems.add(problem)
            elif min_return is None or episode_return >= min_return:
                entries.append(entry)
        if problems:
            raise ConfigError(describe_problems(problems, count, "be used"))
        if not count:
            raise ConfigError(f"files={list(paths)}: they have no rows. Give others.")
        if not len(entries):
            raise ConfigError(
                f"min_return={min_return}: none of the {count:,} episodes in "
                f"files={list(paths)} has such a return. Lower it."
            )
        self._entries = entries.array()
        self._folders = [file.folder for file in files]
        self._reader: RowReader[Any] = RowReader([file.path for file in files], parse)

    def _parse_without(self, parse: Parser, remove: str, line: bytes) -> Any:
        row, changed = without_text(parse(line), remove)
        self.has_removed |= changed
        return row

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._entries)

    def __getitem__(self, number: int) -> Any:
        """Return the content of a row.

        Raises:
            ConfigError: The file has changed since it was opened.
        """
        entry = self._entries[number]
        row = self._reader.read(entry)
        if not isinstance(row, ROWS_WITH_PICTURES):
            return row
        try:
            return row.shown(self._folders[int(entry["file"])])
        except RowError as error:
            raise ConfigError(
                f"{error} The file has changed while it is in use. Start the run again."
            ) from error

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


class RowsToCome(RowFile):
    """Rows that an earlier stage of the recipe has not written yet."""

    def __init__(self) -> None:
        self._entries = np.array([], ENTRY)


class SharedRows:
    """Rows of several parts, each with its share of every stretch of the sequence.

    Args:
        parts: Rows of the parts.
        shares: Share of each part, > 0; they sum to 1.
    """

    def __init__(self, parts: Sequence[RowFile], shares: Sequence[float]):
        self._parts, self._shares = parts, np.asarray(shares, np.float64)
        self._taken = np.zeros(len(parts), np.int64)  # rows before the next one

    @property
    def has_removed(self) -> bool:
        """True if a row of a part has a text that is left out."""
        return any(part.has_removed for part in self._parts)

    @property
    def has_pictures(self) -> bool:
        """True if a row of a part shows pictures."""
        return any(part.has_pictures for part in self._parts)

    def __len__(self) -> int:
        """Return the number of rows of all parts."""
        return sum(map(len, self._parts))

    def in_passes(self, seed: int, first: int, count: int) -> list[Any]:
        """Return the rows ``first`` to ``first + count``; see :class:`RowFile`."""
        if first < self._taken.sum():
            self._taken[:] = 0
        while self._taken.sum() < first:
            self._next_part()
        rows = []
        for _ in range(count):
            part = self._next_part()
            place = int(self._taken[part]) - 1
            rows += self._parts[part].in_passes(seed, place, 1)
        return rows

    def _next_part(self) -> int:
        """Return the part that is furthest behind its share, and count its row."""
        behind = self._shares * (self._taken.sum() + 1) - self._taken
        # Rounding must not decide between equal parts.
        part = int(np.argmax(behind.round(9)))
        self._taken[part] += 1
        return part


def _scan(
    files: Sequence[DataFile], parse: Parser, min_return: float | None = None
) -> Iterator[tuple[tuple[int, int, int], str, float, Any]]:
    """Yield each row: its place; why it cannot be used, or ""; its return; itself."""
    places: dict[str, str] = {}
    for number, file in enumerate(files):
        for line, offset, text in numbered_lines(file.path):
            place, episode_return = f"{file.path.name}, line {line}", math.nan
            problem, row = "", None
            try:
                row = parse(text)
                if isinstance(row, ROWS_WITH_PICTURES):
                    row.shown(file.folder)
                if isinstance(row, StoredEpisode):
                    _check_id(row.id, place, places)
                    episode_return = row.episode_return
                elif min_return is not None:
                    raise RowError("min_return needs saved episodes, with 'agents'.")
            except RowError as error:
                problem = f"{place}: {error}"
            yield (number, len(text), offset), problem, episode_return, row


def _has_pictures(row: Any) -> bool:
    if isinstance(row, StoredEpisode):
        return any(agent.pictures for agent in row.agents)
    return isinstance(row, ROWS_WITH_PICTURES) and row.has_pictures


def _check_id(name: str | None, place: str, places: dict[str, str]) -> None:
    """Note where an episode is; refuse a second one with its id."""
    if name is None:
        return
    if name in places:
        raise RowError(f"the id {name!r} is that of {places[name]}, too.")
    places[name] = place


@dataclasses.dataclass(frozen=True, slots=True)
class StoredRowsReport:
    """Contents of a file of conversations or preference pairs.

    Attributes:
        num_rows: Number of lines that are not blank.
        problems: Lines that cannot be trained on, with the reason.
    """

    num_rows: int
    problems: RowNotes

    @property
    def ok(self) -> bool:
        """True if there are rows and all can be trained on."""
        return not self.problems and self.num_rows > 0

    def __str__(self) -> str:
        good = self.num_rows - len(self.problems)
        first = f"{good:,} of {self.num_rows:,} rows can be trained on (data.files)"
        return "\n".join([first, *self.problems.report("error")])


def check_stored_rows(path: str) -> StoredRowsReport | None:
    """Return what is wrong with a file's rows; None if they are tasks.

    The first row tells what kind of rows the file has.

    Raises:
        ConfigError: The file cannot be read.
    """
    files = data_files([path])
    parse = parser_of(_first_columns(files))
    if parse is None:
        return None
    problems, count = RowNotes(), 0
    for _, problem, _, _ in _scan(files, parse):
        count += 1
        if problem:
            problems.add(problem)
    return StoredRowsReport(count, problems)


def _first_columns(files: Sequence[DataFile]) -> list[str]:
    for file in files:
        for _, _, text in numbered_lines(file.path):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                return []
            return list(row) if isinstance(row, dict) else []
    return []


def open_rows(
    files: str | Sequence[str],
    parse: Parser,
    min_return: float | None = None,
    remove: str | None = None,
) -> RowFile:
    """Return the rows of files, which are read once per process unless they change.

    Args:
        files: A path or several; see :class:`RowFile`.
        parse: A function of the module, which is part of the key of opened files.
        min_return: See :class:`RowFile`.
        remove: See :class:`RowFile`.

    Raises:
        ConfigError: A file or a row cannot be used.
    """
    paths = (files,) if isinstance(files, str) else tuple(files)
    return _opened(paths, parse, min_return, remove, cache_key(local_files(paths)))


@lru_cache(maxsize=8)
def _opened(
    paths: tuple[str, ...],
    parse: Parser,
    min_return: float | None,
    remove: str | None,
    key: str,
) -> RowFile:
    return RowFile(paths, parse, min_return, remove)
