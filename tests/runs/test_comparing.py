"""Settings and results of two runs side by side."""

from __future__ import annotations

from run_builder import RETURN, write_run

from rllib_llm.runs import read_run
from rllib_llm.runs.comparing import (
    differences,
    last_values,
)


def test_recipes_and_results_side_by_side(tmp_path):
    a = {"name": "a", "training": {"lr": 1}, "seed": 0}
    b = {"name": "b", "training": {"lr": 2, "gamma": 1}, "seed": 0}
    first = read_run(write_run(tmp_path / "a", [({}, [1, 2]), ({}, [1, 4])], a))
    second = read_run(write_run(tmp_path / "b", [({}, [1])], b))
    assert differences(first, second) == [
        ("training.gamma", None, 1),
        ("training.lr", 1, 2),
    ]
    assert last_values(first)[RETURN].mean == 3
    assert last_values(second) == {RETURN: last_values(second)[RETURN]}
