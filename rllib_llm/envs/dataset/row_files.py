"""Data files as JSON Lines on the local disk, read line by line or by offset."""

from __future__ import annotations

import base64
import csv
import dataclasses
import glob
import gzip
import hashlib
import importlib.resources
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from rllib_llm.cache import cache_dir
from rllib_llm.errors import ConfigError, summarize

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".json", ".parquet", ".csv")
HUB = "hf://"
MAX_LINE_BYTES = 16 * 2**20
_HUB_FILE = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/(?P<file>.+)"
)
# A drive letter of Windows is no package.
_PACKAGE_FILE = re.compile(r"(?P<package>[A-Za-z_][\w.]+):(?P<file>[^/\\].*)")
_WILDCARDS = re.compile(r"[*?\[]")


@dataclasses.dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as JSON Lines on this machine.

    Attributes:
        path: The JSON Lines file.
        name: Name of the file, or of the dataset, that the user gave, for messages.
        folder: Folder that relative paths in its rows refer to; None: no folder.
    """

    path: Path
    name: str
    folder: Path | None


def is_data_file(name: str) -> bool:
    """Return whether a name is that of a data file, not of an environment."""
    return name.startswith(HUB) or name.endswith(SUFFIXES)


def local_files(paths: Iterable[str]) -> list[Path]:
    """Return the paths of :func:`data_files`."""
    return [file.path for file in data_files(paths)]


def data_files(paths: Iterable[str]) -> list[DataFile]:
    """Return data files as JSON Lines files on this machine.

    Files in other formats are converted once, into the cache.

    Args:
        paths: Paths, patterns with ``*``, ``hf://datasets/OWNER/NAME/FILE``, or
            ``PACKAGE:FILE`` for a file of an installed package.

    Raises:
        ConfigError: A file does not exist, has another format or cannot be read.
    """
    return [
        DataFile(_as_json_lines(file), file.name, file.parent)
        for path in paths
        for file in _files(path)
    ]


def cache_key(files: Iterable[Path], *more: object) -> str:
    """Return a key that changes when one of the files does, or another value."""
    stats = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.blake2b(repr((stats, more)).encode(), digest_size=12).hexdigest()


def dataset_cache() -> Path:
    """Return the folder of converted files and of indices; it is created."""
    folder = cache_dir() / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def numbered_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield number (from 1), offset in bytes, and text of every line that is not blank.

    Raises:
        ConfigError: A line has more than ``MAX_LINE_BYTES`` bytes.
    """
    offset = number = 0
    with path.open("rb") as file:
        # The limit keeps a file without line breaks out of memory.
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(
                    f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes. "
                    "Write one JSON object per line."
                )
            if line.strip():
                yield number, offset, line
            offset += len(line)


def _files(path: str) -> list[Path]:
    if path.startswith(HUB):
        return [_from_hub(path)]
    expanded = absolute_path(_in_package(path))
    if _WILDCARDS.search(path):
        files = sorted(Path(name) for name in glob.glob(expanded, recursive=True))
        if not files:
            raise ConfigError(f"path={path!r}: no file matches the pattern.")
        return files
    file = Path(expanded)
    if file.is_dir():
        raise ConfigError(
            f"path={path!r} is a folder. Give files, e.g. {str(file / '*.jsonl')!r}."
        )
    if not file.is_file():
        raise ConfigError(
            f"path={path!r} does not exist (working folder: {Path.cwd()}). Give an "
            "absolute path that exists on every machine of the run."
        )
    return [file]


def _in_package(path: str) -> str:
    """Return the path of a package's file; other paths as they are."""
    match = _PACKAGE_FILE.fullmatch(path)
    if match is None:
        return path
    try:
        folder = importlib.resources.files(match["package"])
    except (ImportError, TypeError) as error:
        raise ConfigError(
            f"path={path!r}: the package {match['package']!r} cannot be "
            "imported. Write 'PACKAGE:FILE', or the path of a file."
        ) from error
    return str(folder / match["file"])


def absolute_path(path: str) -> str:
    """Return a path relative to the working folder, or to that before Tune left it."""
    path = os.path.expanduser(path)
    before = os.environ.get("TUNE_ORIG_WORKING_DIR")
    if before is None or os.path.exists(path):
        return path
    return os.path.join(before, path)


@lru_cache(maxsize=64)  # the hub is asked once per process
def _from_hub(path: str) -> Path:
    """Download a file of a dataset repository, or find it in the hub's own cache."""
    match = _HUB_FILE.fullmatch(path)
    if match is None:
        raise ConfigError(
            f"path={path!r} must be 'hf://datasets/OWNER/NAME/FILE' or "
            "'hf://datasets/OWNER/NAME@REVISION/FILE'."
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        file = hf_hub_download(
            match["repo"],
            match["file"],
            repo_type="dataset",
            revision=match["revision"],
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigError(
            f"path={path!r} cannot be downloaded: {summarize(error)}. Check the name, "
            "the network and, for a private repository, HF_TOKEN."
        ) from error
    return Path(file)


def _as_json_lines(file: Path) -> Path:
    name = file.name
    if not name.endswith(SUFFIXES):
        raise ConfigError(
            f"path={str(file)!r}: unknown format. The name must end with one of "
            f"{', '.join(SUFFIXES)}."
        )
    if name.endswith((".jsonl", ".ndjson")):
        return file
    if name.endswith(".json") and not _holds_a_list(file):
        return file
    convert = _CONVERTERS[name[name.rindex(".") :]]
    target = dataset_cache() / f"{file.stem}-{cache_key([file])}.jsonl"
    if not target.is_file():
        write_once(target, lambda out: convert(file, out))
    return target


def write_once(target: Path, write: Callable[[IO[str]], None]) -> None:
    """Write a text file whole or not at all; several processes may do it at a time.

    Args:
        target: The file.
        write: Receives the opened file.
    """
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, delete=False, encoding="utf-8", suffix=".part"
    ) as part:
        try:
            write(part)
        except BaseException:
            os.unlink(part.name)
            raise
    os.replace(part.name, target)


def _holds_a_list(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _from_list(file: Path, out: IO[str]) -> None:
    try:
        rows = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, "JSON", error) from error
    write_rows(rows, out)


def _from_gzip(file: Path, out: IO[str]) -> None:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            shutil.copyfileobj(lines, out)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(file, "gzip", error) from error


def _from_parquet(file: Path, out: IO[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=1024):
                write_rows(batch.to_pylist(), out)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(file, "Parquet", error) from error


def _from_csv(file: Path, out: IO[str]) -> None:
    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise ConfigError(
                        f"{file}, line {reader.line_num}: the number of values differs "
                        f"from the header's {len(reader.fieldnames or ())} columns."
                    )
                write_rows([row], out)
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unreadable(file, "CSV", error) from error


_CONVERTERS: dict[str, Callable[[Path, IO[str]], None]] = {
    ".json": _from_list,
    ".gz": _from_gzip,
    ".parquet": _from_parquet,
    ".csv": _from_csv,
}


def write_rows(rows: Iterable[Any], out: IO[str]) -> None:
    """Write rows, values by column, as lines of JSON into a text file."""
    for row in rows:
        text = json.dumps(row, ensure_ascii=False, default=_as_json)
        out.write(text + "\n")


def _as_json(value: object) -> Any:
    """Return dates and decimal numbers as text, and bytes of pictures in base64."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return str(value)


def _unreadable(file: Path, kind: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{file} cannot be read as {kind}: {summarize(error)}. Write or download it "
        "again."
    )
