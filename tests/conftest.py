"""What all tests share."""

from __future__ import annotations

import os
import tempfile

# Before torch or ray are imported, here and in Ray's workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
if "RLLIB_LLM_CACHE" not in os.environ:
    os.environ["RLLIB_LLM_CACHE"] = tempfile.mkdtemp(prefix="rllib_llm_cache_")

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_session():
    """One local Ray for the whole test session."""
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


# Tests of environments that run programs; elsewhere the sandbox refuses to.
_SANDBOXED = ("python_tool", "code-v0")


def pytest_collection_modifyitems(items):
    """Skip them where the platform cannot isolate programs."""
    from rllib_llm.sandbox import probe

    missing = probe()["missing"]
    for item in items:
        if missing and any(name in item.name for name in _SANDBOXED):
            item.add_marker(pytest.mark.skip(reason=f"no sandbox here: {missing}"))
