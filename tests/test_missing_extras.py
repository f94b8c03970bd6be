"""Tests that need an extra are skipped without it, and fail for any other reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_an_absent_module_of_ours_is_no_missing_extra(pytestconfig):
    conftest = next(
        plugin
        for name, plugin in pytestconfig.pluginmanager.list_name_plugin()
        if name.endswith("tests/conftest.py")
    )
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
