"""docs/components.md and ``rllib-llm list pieces`` name all that is registered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllib_llm.cli.main import app
from rllib_llm.components.listing import all_pieces, markdown_table, settings_of
from rllib_llm.components.registry import KINDS, PIECES

PAGE = Path(__file__).parents[2] / "docs" / "components.md"
SHIPPED = [piece for piece in all_pieces() if piece.make.__module__[:9] == "rllib_llm"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_the_table_of_the_registry(kind):
    tables = PAGE.read_text(encoding="utf-8").partition("<!-- pieces -->\n")[2]
    assert markdown_table(kind) in tables.strip().split("\n\n"), (
        "docs/components.md is out of date. "
        "Replace what follows its '<!-- pieces -->' by: "
        'python -c "from rllib_llm.components.listing import markdown_tables; '
        'print(markdown_tables())"'
    )


def test_every_row_is_a_piece():
    tables = PAGE.read_text(encoding="utf-8").partition("<!-- pieces -->\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)
    names = [name for kind in KINDS for name in PIECES[kind]]
    assert sorted(rows) == sorted(names)


@pytest.mark.parametrize("piece", SHIPPED, ids=lambda p: f"{p.kind}-{p.name}")
def test_every_piece_says_what_it_does_and_where_from(piece):
    assert piece.summary.endswith(".")
    assert piece.paper or not piece.kind.startswith("credit")


def test_list_shows_pieces_with_settings_and_papers():
    shown = CliRunner().invoke(app, ["list", "pieces"])
    assert shown.exit_code == 0
    lines = {" ".join(line.split()[:2]): line for line in shown.output.splitlines()}
    for piece in all_pieces():
        line = lines[f"{piece.kind} {piece.name}"]
        assert settings_of(piece) in line and piece.paper in line
    assert "discount=0.95" in lines["credit anchor"]
    assert "boundary (needed)" in lines["credit turn"]
