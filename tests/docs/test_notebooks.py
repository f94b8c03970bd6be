"""The notebooks run from top to bottom; what is stored of them is a whole run."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
nbformat = pytest.importorskip("nbformat", reason="the extra dev is not installed")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@each
def test_stored_notebooks_are_valid_and_hold_a_run(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        ast.parse(cell.source)
        # Printed lines only: no warnings, no paths of the machine, no pictures.
        assert all(output.get("name") == "stdout" for output in cell.outputs)
        assert cell.outputs or "print(" not in cell.source


@each
def test_links_of_notebooks_lead_somewhere(path):
    import re

    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)", cell.source):
                assert link.startswith("http") or (path.parent / link).is_file(), link


@pytest.mark.slow
@each
def test_notebooks_run(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="the extra dev is not installed")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    notebook = nbformat.read(path, as_version=4)
    stored = [bool(cell.outputs) for cell in code_cells(notebook)]
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises for a cell that fails
    printed = [
        any(output.get("name") == "stdout" for output in cell.outputs)
        for cell in code_cells(notebook)
    ]
    assert printed == stored
