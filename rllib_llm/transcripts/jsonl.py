"""Reader of JSON lines that tolerates lines cut by a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_records(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSONL file.

    A resumed run appends to the file of the interrupted one. If that ended within a
    line, the fragment is skipped and the record after it is read.

    Args:
        path: The file.
        key: A key of every record that nested objects do not have.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            record = _last_record(line, key)
            if record is not None:
                yield record


def _last_record(line: str, key: str) -> dict[str, Any] | None:
    # Try every "{": the first that parses to the end begins after the fragment.
    start = line.find("{")
    while start >= 0:
        try:
            record = json.loads(line[start:])
        except json.JSONDecodeError:
            start = line.find("{", start + 1)
        else:
            return record if key in record else None
    return None
