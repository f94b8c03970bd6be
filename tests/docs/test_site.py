"""The site: every page has a place, every link leads somewhere, and it builds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks():
    path = ROOT / "scripts" / "site_hooks.py"
    spec = importlib.util.spec_from_file_location("site_hooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _NoTags(yaml.SafeLoader):
    """mkdocs.yml names a function by a tag; here it does not matter."""


_NoTags.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.load(text, _NoTags)["nav"]


def pages():
    docs = ROOT / "docs"
    found = [p.relative_to(docs).as_posix() for p in docs.rglob("*.md")]
    return [*found, *(f"notebooks/{p.stem}.md" for p in docs.glob("notebooks/*.ipynb"))]


def leaves(nav):
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]


def test_every_page_has_one_place_in_the_navigation(hooks):
    placed = leaves(hooks.complete_nav(navigation(), pages()))
    ours = [page for page in placed if not page.startswith(hooks.COPIES)]
    assert sorted(ours) == sorted(pages())


def test_entries_of_the_navigation_exist():
    for entry in leaves(navigation()):
        if entry.startswith("repository/"):
            assert (ROOT / entry.removeprefix("repository/")).is_file(), entry
        elif "*" not in entry:
            assert entry in pages(), f"mkdocs.yml names {entry}, which is no page"


def test_a_new_page_needs_no_entry(hooks):
    nav = [{"Start": ["index.md"]}, {"All": ["envs/*"]}]
    full = hooks.complete_nav(nav, ["index.md", "envs/a.md", "envs/b.md", "new.md"])
    assert full == [
        {"Start": ["index.md"]},
        {"All": ["envs/a.md", "envs/b.md"]},
        {hooks.REST: ["new.md"]},
    ]


@pytest.mark.parametrize(
    "src_uri, link, expected",
    [
        ("faq.md", "design.md#rows", "design.md#rows"),
        ("algorithms/ppo.md", "../../README.md", "../repository/README.md"),
        (
            "presets/dapo.md",
            "../../tuned_examples/grpo/dapo.yaml",
            "../repository/tuned_examples/grpo/dapo.yaml.md",
        ),
        ("index.md", "notebooks/first_run.ipynb", "notebooks/first_run.md"),
        ("repository/CHANGELOG.md", "docs/components.md", "../components.md"),
        ("index.md", "https://ray.io", "https://ray.io"),
    ],
)
def test_links_follow_the_repository(hooks, src_uri, link, expected):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=src_uri))
    assert hooks.on_page_markdown(f"[x]({link})", page=page) == f"[x]({expected})"


def test_marks_of_fences_are_taken_off_and_code_is_left_alone(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="faq.md"))
    text = "a [x](../LICENSE)\n\n```python run\n# [x](../LICENSE)\n```\n\nb"
    shown = hooks.on_page_markdown(text, page=page)
    assert shown == (
        "a [x](repository/LICENSE.md)\n\n```python\n# [x](../LICENSE)\n```\n\nb"
    )


def test_notebooks_show_code_and_what_it_printed(hooks):
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": ["1 + 1"],
            "outputs": [{"data": {"text/plain": ["2"]}}],
        },
    ]
    shown = hooks.notebook_as_markdown({"cells": cells})
    assert shown == "# Title\ntext\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n"


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in pages():
        html = page.removesuffix(".md").removesuffix("README")
        name = f"{html}index.html" if page.endswith("README.md") else f"{html}.html"
        assert (tmp_path / name).is_file(), page
    recipe = tmp_path / "repository/tuned_examples/ppo/frozen_lake_ppo.yaml.html"
    assert "episodes_per_iteration" in recipe.read_text(encoding="utf-8")
    index = json.loads((tmp_path / "search/search_index.json").read_text())
    assert any(doc["location"].startswith("quickstart") for doc in index["docs"])
