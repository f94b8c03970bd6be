"""Read the transcripts that a run wrote (their fields: docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_llm.results.lines import read_records

TRANSCRIPTS_FILE = "transcripts.jsonl"


def read_transcripts(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ``transcripts.jsonl``.

    Args:
        path: The file, or a folder: then every such file below it, in sorted order.

    Yields:
        Records in the order they were written. A line cut off by a crash is left out.
        After a resume, iterations since the checkpoint may appear twice.

    Raises:
        FileNotFoundError: If there is none.
    """
    path = Path(path).expanduser()
    files = sorted(path.rglob(TRANSCRIPTS_FILE)) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"There is no {TRANSCRIPTS_FILE} below {path}.")
    for file in files:
        yield from read_records(file, "turns")
