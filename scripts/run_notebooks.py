"""Run notebooks from top to bottom and store what they print: ``make notebooks``.

    python scripts/run_notebooks.py docs/notebooks/*.ipynb

Needs nbclient and ipykernel (the extra ``dev``). Only standard output is stored.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat


def run(path: Path) -> None:
    """Execute a notebook in a fresh folder and write it back."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") == "stdout"]
    notebook.metadata.language_info = {"name": "python"}
    text = nbformat.writes(notebook)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
