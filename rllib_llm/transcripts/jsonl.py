"""JSON lines that a crash may have cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_records(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSONL file.

    A resumed run appends to what its predecessor left. If that ended in half a line,
    the half is passed over, and the record behind it is found.

    Args:
        path: The file.
        key: What every record has, and nothing inside of a record.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            record = _last_record(line, key)
            if record is not None:
                yield record


def _last_record(line: str, key: str) -> dict[str, Any] | None:
    start = line.find("{")
    while start >= 0:
        try:
            record = json.loads(line[start:])
        except json.JSONDecodeError:
            start = line.find("{", start + 1)
        else:
            return record if key in record else None
    return None
