"""Faults that scripts/mutate.py injects: each still applies, and its tests exist."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts/mutate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_no_fault_is_stale(mutate):
    problems = [(f.file, f.breaks, f.problem()) for f in mutate.load_faults()]
    assert not [p for p in problems if p[-1]], "Mend tests/faults/*.yaml."


def test_names_that_nothing_defines_are_found(mutate):
    source = """
import os
from a import b as c
LIMIT = 1
def f(x, *rest, key=None):
    global made
    made = [y for y in rest]
    def inner():
        return x + LIMIT + len(rest) + gone
    return inner, os, c, made
class D:
    size: int = 2
    def area(self):
        return super().area() * D.size
"""
    assert mutate.undefined_names(source) == ["gone"]
    assert mutate.undefined_names(source.replace("gone", "LIMIT")) == []
    assert mutate.undefined_names("value = other\n") == ["other"]


def test_no_module_would_seem_faulty(mutate):
    sources = sorted((ROOT / "rllib_llm").rglob("*.py"))
    assert [p for p in sources if mutate.undefined_names(p.read_text("utf-8"))] == []


def test_there_are_enough_faults_and_each_is_one(mutate):
    faults = mutate.load_faults()
    assert len(faults) >= 150
    repeated = Counter((f.file, f.old, f.new) for f in faults)
    assert not [key for key, count in repeated.items() if count > 1]
    # Every package whose fault would train wrongly or measure wrongly has some.
    assert {f.package for f in faults} >= {
        "advantages",
        "algorithms",
        "components",
        "connectors",
        "engines",
        "env_runner",
        "envs",
        "evaluation",
        "graders",
        "modules",
        "losses",
        "monitoring",
        "recipes",
        "rewards",
        "sandbox",
        "selfplay",
        "tools",
    }


def test_a_fault_is_injected_into_a_copy_and_taken_out_again(
    mutate, tmp_path, monkeypatch
):
    checkout = tmp_path / "checkout"
    (checkout / "pkg").mkdir(parents=True)
    (checkout / "pkg/code.py").write_text("VALUE = 1\nOTHER = 1\n")
    (checkout / "test_code.py").write_text("def test_value():\n    assert True\n")
    monkeypatch.setattr(mutate, "ROOT", checkout)
    monkeypatch.setattr(
        mutate, "_listed_files", lambda: ["pkg/code.py", "test_code.py"]
    )
    fault = mutate.Fault(
        "pkg/code.py", "VALUE = 1", "VALUE = 2", "the value", ("test_code.py",)
    )
    assert fault.problem(checkout) is None
    copy = mutate.Copy(tmp_path / "work")
    copy.inject(fault)
    assert (copy.root / "pkg/code.py").read_text() == "VALUE = 2\nOTHER = 1\n"
    assert (checkout / "pkg/code.py").read_text() == "VALUE = 1\nOTHER = 1\n"
    copy.revert(fault)
    assert (copy.root / "pkg/code.py").read_text() == "VALUE = 1\nOTHER = 1\n"


@pytest.mark.parametrize(
    ("new", "problem"),
    [("= gone", "reads 'gone', which nothing defines"), ("= (", "does not compile")],
)
def test_faults_that_any_test_would_notice_are_named(mutate, tmp_path, new, problem):
    (tmp_path / "code.py").write_text("VALUE = 1\n")
    (tmp_path / "test_code.py").write_text("")
    fault = mutate.Fault("code.py", "= 1", new, "the value", ("test_code.py",))
    assert problem in fault.problem(tmp_path)


@pytest.mark.parametrize(
    ("old", "tests", "problem"),
    [
        ("= 1", ("test_code.py",), "occurs 2 times"),
        ("VALUE = 3", ("test_code.py",), "occurs 0 times"),
        ("VALUE = 1", ("test_gone.py",), "test_gone.py is gone"),
        ("VALUE = 1", ("test_code.py::test_gone",), "test_gone is gone"),
    ],
)
def test_stale_faults_are_named(mutate, tmp_path, old, tests, problem):
    (tmp_path / "code.py").write_text("VALUE = 1\nOTHER = 1\n")
    (tmp_path / "test_code.py").write_text("def test_value():\n    assert True\n")
    fault = mutate.Fault("code.py", old, "", "the value", tests)
    assert problem in fault.problem(tmp_path)
