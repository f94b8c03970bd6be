"""docs/components.md and ``rllib-llm list components`` are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rllib_llm.cli.main import app
from rllib_llm.components.doc_tables import all_components, markdown_table, settings_of
from rllib_llm.components.registry import COMPONENTS, KINDS

PAGE = Path(__file__).parents[2] / "docs" / "components.md"
SHIPPED = [
    component
    for component in all_components()
    if component.make.__module__[:9] == "rllib_llm"
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_has_the_table_of_the_registry(kind):
    tables = PAGE.read_text(encoding="utf-8").partition("<!-- components -->\n")[2]
    assert markdown_table(kind) in tables.strip().split("\n\n"), (
        "docs/components.md is out of date. "
        "Replace what follows its '<!-- components -->' by: "
        'python -c "from rllib_llm.components.doc_tables import markdown_tables; '
        'print(markdown_tables())"'
    )


def test_every_row_is_a_component():
    tables = PAGE.read_text(encoding="utf-8").partition("<!-- components -->\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)
    names = [name for kind in KINDS for name in COMPONENTS[kind]]
    assert sorted(rows) == sorted(names)


@pytest.mark.parametrize("component", SHIPPED, ids=lambda p: f"{p.kind}-{p.name}")
def test_every_component_has_a_summary_and_a_source(component):
    assert component.summary.endswith(".")
    assert component.paper or not component.kind.startswith("advantage_estimator")


def test_list_shows_components_with_settings_and_papers():
    shown = CliRunner().invoke(app, ["list", "components"])
    assert shown.exit_code == 0
    lines = {" ".join(line.split()[:2]): line for line in shown.output.splitlines()}
    for component in all_components():
        line = lines[f"{component.kind} {component.name}"]
        assert settings_of(component) in line and component.paper in line
    assert "discount=0.95" in lines["advantage_estimator anchor"]
    assert "boundary (needed)" in lines["advantage_estimator turn"]
