"""Names in code font, outside of code blocks, are those of settings, files, verbs."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import typer

from rllib_llm.algorithms import ALGORITHMS
from rllib_llm.algorithms.config.sections import SECTIONS, section_keys
from rllib_llm.callbacks.metric_names import check_metric_name
from rllib_llm.cli.main import app
from rllib_llm.recipes.tune_settings import TUNE_DEFAULTS

ROOT = Path(__file__).parents[2]
_DOCS = ("docs", "tuned_examples")
_FENCE = re.compile(r"^(`{3,})[^\n`]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_FOLDERS = "rllib_llm|tests|benchmarks|docs|scripts|tuned_examples|envs|algorithms"
# Named as what they are not: RLlib's own setting, a package of wheels.
_ELSEWHERE = {"training.model", "rllib_llm.tuned_examples"}
_TAGS = {"learners/<module>/advantages", "env_runners/returns"}  # histograms


def prose() -> dict[str, str]:
    """Return the pages without their code blocks, by path; history is left out."""
    folders = [ROOT.glob("*.md"), *((ROOT / f).rglob("*.md") for f in _DOCS)]
    pages = [page for pages in folders for page in pages]
    return {
        page.relative_to(ROOT).as_posix(): _FENCE.sub("", page.read_text("utf-8"))
        for page in pages
        if page.name != "CHANGELOG.md"
    }


PAGES = prose()
each = pytest.mark.parametrize("page", PAGES)


@each
def test_settings_exist(page):
    classes = [ALGORITHMS.get(name).config_class() for name in ALGORITHMS]
    known = {f"{s}.{k}" for c in classes for s in SECTIONS for k in section_keys(c, s)}
    known |= {f"tune.{key}" for key in TUNE_DEFAULTS} | _ELSEWHERE
    # verl's settings, in coming_from_settings.md, have a section "data" as well.
    ours = [
        s for s in SECTIONS if s != "data" or page != "docs/coming_from_settings.md"
    ]
    sections = "|".join((*ours, "tune"))
    named = re.findall(rf"`((?:{sections})\.(?!md|py)[a-z_0-9]+)", PAGES[page])
    assert set(named) <= known


@each
def test_names_of_the_package_exist(page):
    for name in set(re.findall(r"`(rllib_llm(?:\.\w+)+)", PAGES[page])) - _ELSEWHERE:
        module, rest = name, []
        while not _is_module(module):
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
        found = import_module(module)
        for part in rest:
            assert hasattr(found, part), name
            found = getattr(found, part)


def _is_module(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise
        return False
    return True


@each
def test_files_verbs_and_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = typer.main.get_command(app).commands
    for path in re.findall(rf"`((?:{_FOLDERS})/[\w/.\-]+)`", PAGES[page]):
        assert (ROOT / path).exists(), path
    for verb in re.findall(r"`rllib-llm ([a-z]+)", PAGES[page]):
        assert verb in verbs, verb
    for target in re.findall(r"`make ([a-z]+)`", PAGES[page]):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@each
def test_metrics_are_reported(page):
    pattern = r"`((?:env_runners|learners|evaluation)/[\w/<>]*[\w>])`"
    for name in set(re.findall(pattern, PAGES[page])) - _TAGS:
        check_metric_name(re.sub(r"<\w+>", "x", name), page)
