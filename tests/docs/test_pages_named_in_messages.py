"""Pages and headings of the documentation that the code names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PAGE = re.compile(r"\bdocs/[\w/]+\.md\b")
# As in "docs/troubleshooting.md, 'Entropy collapses'".
_HEADING = re.compile(r"(docs/[\w/]+\.md), '([^']+)'")


def strings(path: Path) -> list[str]:
    """Return the strings of a module, adjacent literals joined, with its docstrings."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value for p in node.values if isinstance(p, ast.Constant)]
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def headings(page: Path) -> list[str]:
    """Return the headings of a page, and the bold text that opens a paragraph."""
    text = page.read_text("utf-8")
    return re.findall(r"^(?:#+ |\*\*)([^\n]*?)(?:\*\*.*)?$", text, re.MULTILINE)


SOURCES = sorted((ROOT / "rllib_llm").rglob("*.py"))


def test_pages_that_the_code_names_exist():
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in SOURCES
        for page in _PAGE.findall(path.read_text("utf-8"))
    }
    assert len(named) > 30
    assert [each for each in named if not (ROOT / each[1]).is_file()] == []


def named_headings() -> list[tuple[str, str]]:
    """Return the headings that strings name, with their pages."""
    return sorted(
        {
            pair
            for path in SOURCES
            for s in strings(path)
            for pair in _HEADING.findall(s)
        }
    )


@pytest.mark.parametrize(("page", "heading"), named_headings())
def test_headings_that_messages_name_exist(page, heading):
    assert heading.rstrip(".") in {h.rstrip(".") for h in headings(ROOT / page)}


def test_the_doctor_names_a_heading():
    assert "The train-inference mismatch is large" in dict(named_headings()).values()
