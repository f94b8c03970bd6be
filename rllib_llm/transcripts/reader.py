"""Reader of a run's transcripts, of this version or an older one.

docs/transcripts.md explains the fields; ``transcripts.schema.json`` is their schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rllib_llm.errors import ConfigError
from rllib_llm.transcripts.jsonl import read_records

VERSION = 2
TRANSCRIPTS_FILE = "transcripts.jsonl"
SCHEMA_FILE = Path(__file__).with_name("transcripts.schema.json")

# Fields that version 1 did not have.
_NEW_IN_RECORDS = {"episode": None, "trained": None, "environment": None}
_NEW_IN_TURNS: dict[str, Any] = {
    "index": None,
    "agent_index": None,
    "prompt": None,
    "reward_parts": {},
    "advantage": None,
    "columns": None,
}


def read_transcripts(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ``transcripts.jsonl``.

    Args:
        path: The file, or a folder whose files are read in sorted order.

    Yields:
        Records in the order in which they were written, with the fields of this
        version; those that an older version did not write are None. Lines cut by a
        crash are skipped. After a resume, iterations since the checkpoint may occur
        twice (see :func:`latest`).

    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: A newer version of the package wrote the file.
    """
    path = Path(path).expanduser()
    files = sorted(path.rglob(TRANSCRIPTS_FILE)) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"There is no {TRANSCRIPTS_FILE} below {path}.")
    for file in files:
        for record in read_records(file, "turns"):
            yield _current(record, file)


def latest(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records without those of iterations that a resumed run repeated.

    Args:
        records: Records of one trial, in the order in which they were written.
    """
    kept: list[dict[str, Any]] = []
    last = 0
    for record in records:
        iteration = record["iteration"] or 0
        if iteration < last:
            kept = [r for r in kept if (r["iteration"] or 0) < iteration]
        last = iteration
        kept.append(record)
    return kept


def token_column(turn: dict[str, Any], name: str) -> list[float | None]:
    """Return one number per sampled token of a turn; None where it is missing.

    Args:
        turn: An item of a record's ``turns``.
        name: Name of a column, e.g. ``"advantage"``.
    """
    columns = turn["columns"]
    if columns is None:
        return [None] * turn["tokens"]
    values = columns.get(name)
    return values if isinstance(values, list) else [values] * len(columns["text"])


def schema() -> dict[str, Any]:
    """Return the JSON schema of a record."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def _current(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the record with the fields of this version."""
    version = record.get("version")
    if version == VERSION:
        return {"environment": None, **record}  # which the first ones did not have
    if version != 1:
        raise ConfigError(
            f"{path} contains transcripts of version {version!r}, but this package "
            f"reads versions 1 to {VERSION}. Use the rllib-llm that wrote it."
        )
    turns = [{**_NEW_IN_TURNS, **turn} for turn in record["turns"]]
    return {**_NEW_IN_RECORDS, **record, "version": VERSION, "turns": turns}
