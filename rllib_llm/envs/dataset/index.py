"""Index of a dataset's rows by split, checked once and kept in the cache."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from rllib_llm.envs.dataset.answers import make_grader
from rllib_llm.envs.dataset.dataset_rows import Columns, DatasetRow, RowError, parse_row
from rllib_llm.envs.dataset.growing_array import GrowingArray
from rllib_llm.envs.dataset.picture_files import check_pictures, read_picture
from rllib_llm.envs.dataset.prompt_digests import PromptDigests, prompt_digest
from rllib_llm.envs.dataset.repositories import is_repository, repository_file
from rllib_llm.envs.dataset.row_files import (
    DataFile,
    cache_key,
    data_files,
    dataset_cache,
    numbered_lines,
)
from rllib_llm.envs.dataset.row_reader import (
    ENTRY,
    RowNotes,
    RowReader,
    describe_problems,
)
from rllib_llm.envs.env_options import SPLITS
from rllib_llm.errors import ConfigError

_VERSION = 2  # increase when the index or the rules of rows change
_MAX_SHOWN = 5
_PICTURED = "num_pictured"
_BUILDING = threading.Lock()


@dataclasses.dataclass(frozen=True, slots=True)
class DatasetSpec:
    """Place of the tasks, and the way to read rows.

    Attributes:
        paths: Files or datasets with tasks.
        test_paths: Files with held-out tasks.
        columns: Columns of the rows.
        grader: Name of the grader, whose form of answers is checked.
        test_fraction: Share of the prompts that is held out if no held-out tasks are
            given, in (0, 1).
        split: Split of the datasets in ``paths``; None: ``train``, or the only one.
        test_split: Their split with held-out tasks.
        config_name: Their configuration; None: the default one.
    """

    paths: tuple[str, ...]
    test_paths: tuple[str, ...] = ()
    columns: Columns = dataclasses.field(default_factory=Columns)
    grader: str = "exact"
    test_fraction: float = 0.1
    split: str | None = None
    test_split: str | None = None
    config_name: str | None = None

    @property
    def names_held_out(self) -> bool:
        """True if held-out tasks are given; else a share of the tasks is held out."""
        return bool(self.test_paths) or self.test_split is not None


@dataclasses.dataclass(frozen=True, slots=True)
class ScannedRow:
    """A line of a data file.

    Attributes:
        file: Number of the file, those of ``test_paths`` last.
        line: Number of the line in its file, from 1.
        offset: Position of the line in its file, in bytes.
        length: Bytes of the line.
        row: The task; None if the line cannot be one.
        problem: Why not.
        digest: Digest of the prompt, see :func:`prompt_digest`.
    """

    file: int
    line: int
    offset: int
    length: int
    row: DatasetRow | None
    problem: str = ""
    digest: int = 0


def scan(files: list[DataFile], spec: DatasetSpec) -> Iterator[ScannedRow]:
    """Yield every row of the files, also those that cannot be tasks."""
    grader = make_grader(spec.grader)
    for number, file in enumerate(files):
        for line, offset, text in numbered_lines(file.path):
            row, problem, digest = None, "", 0
            try:
                row = parse_row(text, spec.columns, file.folder)
                digest = prompt_digest(row, check_pictures(row))
                if spec.columns.answer is not None:
                    grader.write(row.answer)
            except RowError as error:
                row, problem = None, str(error)
            yield ScannedRow(number, line, offset, len(text), row, problem, digest)


def files_of(spec: DatasetSpec) -> tuple[list[DataFile], int]:
    """Return all files, held-out ones last, and the number of the others.

    Raises:
        ConfigError: A file or a dataset cannot be read, or an option of datasets is
            given without one.
        MissingExtraError: A dataset is named and ``datasets`` is not installed.
    """
    named = [path for path in spec.paths if is_repository(path)]
    for option in ("split", "test_split", "config_name"):
        if getattr(spec, option) is not None and not named:
            raise ConfigError(
                f"{option}={getattr(spec, option)!r} has no effect: path="
                f"{list(spec.paths)} names files. Remove it, or give a dataset of the "
                "hub ('hf://datasets/OWNER/NAME') or its folder."
            )
    if spec.test_paths and spec.test_split is not None:
        raise ConfigError(
            f"test_path={list(spec.test_paths)} and test_split={spec.test_split!r} "
            "both name held-out tasks. Remove one of them."
        )
    train = _files_of(spec.paths, spec.split, spec.config_name)
    held_out = data_files(spec.test_paths)
    if spec.test_split is not None:
        held_out = _files_of(tuple(named), spec.test_split, spec.config_name)
    return train + held_out, len(train)


def _files_of(
    paths: tuple[str, ...], split: str | None, config_name: str | None
) -> list[DataFile]:
    files: list[DataFile] = []
    for path in paths:
        if is_repository(path):
            files.append(repository_file(path, split, config_name))
        else:
            files += data_files([path])
    return files


class Dataset:
    """Tasks of a data file, read from disk by split and number.

    It holds 16 bytes per row, mapped from the cache. Reading is safe in threads.

    Args:
        files: The files.
        rows: Entries of every split.
        columns: Columns of the rows.
        num_pictured: Number of rows with pictures.

    Attributes:
        num_pictured: The same.
    """

    def __init__(
        self,
        files: list[DataFile],
        rows: dict[str, np.ndarray],
        columns: Columns,
        num_pictured: int,
    ) -> None:
        self._rows, self._files, self.num_pictured = rows, files, num_pictured
        self._reader = RowReader(
            [file.path for file in files],
            functools.partial(parse_row, columns=columns),
        )

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def size(self, split: str) -> int:
        """Return the number of rows of a split."""
        return len(self._rows[split])

    def row(self, split: str, number: int) -> DatasetRow:
        """Return a row of a split.

        Raises:
            ConfigError: The file has changed since the index was made.
        """
        entry = self._rows[split][number]
        folder = self._files[int(entry["file"])].folder
        return dataclasses.replace(self._reader.read(entry), folder=folder)

    def pictures(self, row: DatasetRow, message: int) -> list[np.ndarray]:
        """Return the pictures of a row's message. uint8 [height, width, 3] each

        Args:
            row: The row.
            message: Number of the message; -1 is the prompt.

        Raises:
            ConfigError: A file has changed since the index was made.
        """
        try:
            return [read_picture(s, row.folder) for s in row.pictures[message]]
        except RowError as error:
            raise ConfigError(
                f"A file of a row has changed while it is in use: {error} Start the "
                "run again."
            ) from error


@lru_cache(maxsize=8)
def _opened(
    spec: DatasetSpec, files: tuple[DataFile, ...], num_train: int, key: str
) -> Dataset:
    folder = dataset_cache() / f"index-{key}"
    if not folder.is_dir():
        _write_index(folder, _built(list(files), num_train, spec))
    rows = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
    num_pictured = int(np.load(folder / f"{_PICTURED}.npy"))
    return Dataset(list(files), rows, spec.columns, num_pictured)


def open_dataset(spec: DatasetSpec) -> Dataset:
    """Return the dataset; this process's environments share it.

    Raises:
        ConfigError: A file or a row cannot be used, a held-out prompt is among the
            training ones, or a split is empty.
    """
    files, num_train = files_of(spec)
    key = cache_key(
        [file.path for file in files], num_train, dataclasses.astuple(spec), _VERSION
    )
    with _BUILDING:  # one thread scans, the others wait for its index
        return _opened(spec, tuple(files), num_train, key)


def _built(
    files: list[DataFile], num_train: int, spec: DatasetSpec
) -> dict[str, np.ndarray]:
    """Return the entries of every split, and the number of rows with pictures."""
    entries = {split: GrowingArray(ENTRY) for split in SPLITS}
    prompts = {split: PromptDigests() for split in SPLITS}
    problems, count, num_pictured = RowNotes(), 0, 0
    for each in scan(files, spec):
        count += 1
        if each.row is None:
            problems.add(f"{files[each.file].name}, line {each.line}: {each.problem}")
            continue
        held_out = (
            each.file >= num_train
            if spec.names_held_out
            else each.digest < spec.test_fraction * 2**64
        )
        split = "test" if held_out else "train"
        num_pictured += any(each.row.pictures)
        entries[split].append((each.file, each.length, each.offset))
        if spec.names_held_out:
            prompts[split].add(each.digest, each.row.answer, (each.file, each.line))
    if problems:
        raise ConfigError(describe_problems(problems, count, "be tasks"))
    _refuse_leaks(prompts["train"], prompts["test"], files)
    _refuse_empty({split: len(rows) for split, rows in entries.items()}, spec)
    arrays = {split: rows.array() for split, rows in entries.items()}
    return {**arrays, _PICTURED: np.array(num_pictured)}


def _refuse_leaks(
    train: PromptDigests, test: PromptDigests, files: list[DataFile]
) -> None:
    count, places = train.shared_with(test)
    if not count:
        return
    shown = [
        " and ".join(f"{files[file].name}, line {line}" for file, line in pair)
        for pair in itertools.islice(places, _MAX_SHOWN)
    ]
    raise ConfigError(
        f"{count:,} prompts are both among the training rows and among the "
        f"held-out ones, so that held-out success would measure memory: "
        f"{'; '.join(shown)}. Remove them from one."
    )


def _refuse_empty(sizes: dict[str, int], spec: DatasetSpec) -> None:
    for split, size in sizes.items():
        if size:
            continue
        remedy = (
            "Give test_path or test_split, or another test_fraction"
            if not spec.names_held_out
            else "Give a file with rows"
        )
        raise ConfigError(
            f"path={list(spec.paths)}: the split {split!r} is empty "
            f"({sum(sizes.values()):,} rows, test_fraction={spec.test_fraction:g}). "
            f"{remedy}."
        )


def _write_index(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    part = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
    for name, array in arrays.items():
        np.save(part / f"{name}.npy", array)
    try:
        part.rename(folder)  # whole or not at all
    except OSError:
        shutil.rmtree(part)
        if not folder.is_dir():  # otherwise another process was faster
            raise
