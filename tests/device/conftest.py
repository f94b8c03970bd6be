"""A process with a stand-in for an accelerator; skips where none can be compiled."""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
for _folder in (_TESTS / "algorithms", _TESTS / "device"):
    sys.path.insert(0, str(_folder))

import device_process  # noqa: E402
import standin  # noqa: E402


def pytest_collection_modifyitems(items):
    """Skip the tests of this folder without a compiler."""
    if standin.compiler() is None:
        reason = "no g++: the stand-in accelerator cannot be compiled"
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def on_device():
    """Return ``call(function, *args)``, which calls ``function(accelerator, *args)``.

    In a process of its own: autograd must learn of a device before the first backward
    pass of a process, and other tests must not see it.
    """
    os.environ.setdefault("RLLIB_LLM_TEST_BUILDS", _builds_folder())
    with ProcessPoolExecutor(
        1, get_context("spawn"), device_process.register
    ) as executor:
        yield lambda function, *args, **kw: executor.submit(
            device_process.call, function, *args, **kw
        ).result()


def _builds_folder() -> str:
    # One for all processes of a test session and for later ones; a lock in it lets one
    # process compile.
    return str(Path(tempfile.gettempdir()) / f"rllib_llm_test_builds_{os.getuid()}")
