"""Examples in docstrings (``>>>``) run, and print what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from rllib_llm.components.registry import COMPONENTS
from rllib_llm.sandbox import probe

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "rllib_llm").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
NEED_A_RUN = {"rllib_llm.inference.policy"}  # all of their examples are skipped


def examples(module):
    """Return the docstrings of a module that hold examples."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch):
    if name.startswith("rllib_llm.sandbox") and probe()["missing"]:
        pytest.skip(f"no sandbox here: {probe()['missing']}")
    for registry in COMPONENTS.values():  # an example may register a component
        registry.names()
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    printed: list[str] = []
    tests = examples(import_module(name))
    for test in tests:
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)
    # Not runner.tries, which since Python 3.13 counts skipped examples as well.
    parts = [part for test in tests for part in test.examples]
    is_run = any(not part.options.get(doctest.SKIP, False) for part in parts)
    assert is_run is (name not in NEED_A_RUN)


def test_examples_are_found():
    assert {"rllib_llm.advantages.gae", "rllib_llm.retrieval"} <= set(MODULES)


def test_a_wrong_example_fails():
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    runner = doctest.DocTestRunner()
    runner.run(test, out=lambda text: None)
    assert runner.failures == 1
