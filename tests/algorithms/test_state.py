"""Every class with a state: a new object with it continues as the old one."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from state_cases import CASES

PACKAGE = Path(__file__).parents[2] / "rllib_llm"
GIVES_STATE = {"get_state", "state_dict", "driver_state", "package_state"}
TAKES_STATE = {"set_state", "load_state", "load_state_dict", "set_driver_state"}
# tests/algorithms/test_run_state.py saves and restores whole runs of these.
OF_RUNS = {
    "CheckpointedAlgorithm",
    "GRPO",
    "GuardedAlgorithm",
    "LLMAlgorithm",
    "LLMLearnerGroup",
    "PackageState",
    "MixesFiles",
    "ReplaysEpisodes",
    "SelfPlay",
}


def classes_with_state() -> dict[str, str]:
    """Return the module of every class that gives or takes a state, by its name."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
                if names & (GIVES_STATE | TAKES_STATE):
                    found[f"{module}.{node.name}"] = node.name
    names = list(found.values())
    return {
        name if names.count(name) == 1 else path: path for path, name in found.items()
    }


def test_no_class_with_a_state_is_left_out():
    assert set(classes_with_state()) == set(CASES) | OF_RUNS


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_new_object_goes_on_from_the_state(name):
    case = CASES[name]
    used = case.fresh()
    case.use(used)
    # As a checkpoint does; what is shared with the old object would show.
    state = pickle.loads(pickle.dumps(case.save(used)))
    restored = case.fresh()
    case.load(restored, state)
    expected = case.look(used)
    assert alike(case.look(restored), expected)
    assert not alike(case.look(case.fresh()), expected), "It makes no difference."


def alike(found: Any, expected: Any) -> bool:
    """Return whether two results are equal; arrays up to the order of additions."""
    if isinstance(expected, dict):
        both = found.keys() == expected.keys()
        return both and all(alike(found[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple) and len(found) == len(expected):
        return all(map(alike, found, expected))
    if isinstance(expected, np.ndarray):
        return np.allclose(found, expected, rtol=1e-5, atol=1e-7)
    return bool(found == expected)
