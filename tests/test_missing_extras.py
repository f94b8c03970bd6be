"""Tests that need an extra are skipped without it, and fail for any other reason."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rllib_llm.errors import MissingExtraError

ROOT = Path(__file__).parents[1]
# Of each extra a test that needs it and does not say so.
_ADVANTAGE_ESTIMATORS, _MODULE = (
    "tests/components/test_advantage_settings.py",
    "tests/modules/test_llm_rl",
)
NEED = {
    "pyspiel": f"{_ADVANTAGE_ESTIMATORS}::test_self_play_accepts_all_estimators",
    "openskill": f"{_ADVANTAGE_ESTIMATORS}::test_self_play_accepts_all_estimators",
    "peft": f"{_MODULE}_module.py::test_an_empty_dict_is_lora_with_its_defaults",
}


@pytest.mark.slow
@pytest.mark.parametrize("module", NEED)
def test_without_an_extra_tests_are_skipped(module):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", NEED[module]],
        cwd=ROOT,
        env={**os.environ, "RLLIB_LLM_BLOCKED": module},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{module} is not installed" in done.stdout


def test_a_blocked_module_is_neither_found_nor_imported(pytestconfig, monkeypatch):
    hiding = _conftest(pytestconfig)._Hiding
    blocked = frozenset(["colorsys", "xml"])
    monkeypatch.setattr(
        sys, "meta_path", [hiding(finder, blocked) for finder in sys.meta_path]
    )
    for name in [m for m in sys.modules if m.partition(".")[0] in blocked]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("colorsys", "xml.dom"):
        with pytest.raises(ModuleNotFoundError) as error:
            importlib.import_module(name)
        assert error.value.name == name.partition(".")[0]
    assert importlib.util.find_spec("colorsys") is None
    assert importlib.util.find_spec("wave") is not None
    assert importlib.metadata.version("pytest") == pytest.__version__


def _conftest(pytestconfig):
    return next(
        plugin
        for name, plugin in pytestconfig.pluginmanager.list_name_plugin()
        if name.endswith("tests/conftest.py")
    )


def test_an_absent_module_of_ours_is_no_missing_extra(pytestconfig):
    conftest = _conftest(pytestconfig)
    ours = ModuleNotFoundError(
        "No module named 'rllib_llm.gone'", name="rllib_llm.gone"
    )
    installed = ModuleNotFoundError("No module named 'peft.gone'", name="peft.gone")
    absent = ModuleNotFoundError("No module named 'vllm'", name="vllm")
    assert conftest._missing_extra(ours) is None
    assert conftest._missing_extra(ValueError("wrong")) is None
    for error, name in ((installed, "peft"), (absent, "vllm")):
        expected = name if conftest._is_missing(name) else None
        wrapped = AssertionError("another message")
        wrapped.__context__ = error
        assert conftest._missing_extra(wrapped) == expected


def test_an_import_of_the_package_without_a_remedy_is_no_reason_to_skip(
    pytestconfig, monkeypatch
):
    conftest = _conftest(pytestconfig)
    monkeypatch.setattr(conftest, "_is_missing", lambda name: True)
    statement = "raise ModuleNotFoundError(\"No module named 'peft'\", name='peft')"

    def raised_in(path):
        with pytest.raises(ModuleNotFoundError) as error:
            exec(compile(statement, str(ROOT / path), "exec"))
        return error.value

    assert conftest._missing_extra(raised_in("tests/test_own.py")) == "peft"
    assert conftest._missing_extra(raised_in("rllib_llm/own.py")) is None
    remedy = MissingExtraError.for_extra("peft", "lora")
    remedy.__cause__ = raised_in("rllib_llm/own.py")
    assert conftest._missing_extra(remedy) == "peft"
    # The package of an extra may be imported by another name.
    renamed = MissingExtraError.for_extra("no_extra_of_this_name", "games")
    renamed.__cause__ = raised_in("rllib_llm/own.py")
    assert conftest._missing_extra(renamed) == "peft"
