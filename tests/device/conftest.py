"""A process with an accelerator: a stand-in, or a CUDA device.

``RLLIB_LLM_TEST_DEVICE=cuda`` runs these tests on the first CUDA device. Without it the
stand-in is compiled, and the tests are skipped where there is no compiler.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
for _folder in (_TESTS / "algorithms", _TESTS / "device"):
    sys.path.insert(0, str(_folder))

import device_process  # noqa: E402
import standin  # noqa: E402

DEVICES = ("standin", "cuda")


@pytest.fixture(scope="session")
def device_name():
    """Return "standin" or "cuda"."""
    name = os.environ.get("RLLIB_LLM_TEST_DEVICE", "standin")
    if name not in DEVICES:
        raise ValueError(f"RLLIB_LLM_TEST_DEVICE={name!r} must be one of {DEVICES}.")
    return name


def pytest_collection_modifyitems(items):
    """Skip the tests of this folder without a compiler or a device."""
    on_cuda = os.environ.get("RLLIB_LLM_TEST_DEVICE") == "cuda"
    if standin.compiler() is None and not on_cuda:
        reason = "no g++: the stand-in accelerator cannot be compiled"
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def on_device(device_name):
    """Return ``call(function, *args)``, which calls ``function(accelerator, *args)``.

    In a process of its own: autograd must learn of a device before the first backward
    pass of a process, and other tests must not see it.
    """
    with ProcessPoolExecutor(
        1, get_context("spawn"), device_process.register, (device_name,)
    ) as executor:
        yield lambda function, *args, **kw: executor.submit(
            device_process.call, function, *args, **kw
        ).result()
