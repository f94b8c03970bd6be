"""Table of the benchmark of search."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rllib_llm.evaluation.outcomes import Outcome
from rllib_llm.evaluation.success_statistics import share_of_tasks

PATH = Path(__file__).parents[2] / "benchmarks" / "search.py"


@pytest.fixture(scope="module")
def search():
    spec = importlib.util.spec_from_file_location("benchmark_of_search", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def outcomes(*successes):
    return [Outcome(task, 0, n, success=s) for n, (task, s) in enumerate(successes)]


def test_samples_of_a_task_have_one_share(search):
    of_seed = outcomes((0, True), (0, False), (2, True), (3, None))
    assert search.solved(of_seed) == {"0": 0.5, "2": 1.0}


def test_the_interval_has_tasks_as_units_and_seeds_as_samples(search):
    of_seeds = [{"0": 1.0, "1": 0.0, "2": 0.5}, {"0": 1.0, "1": 1.0}]
    found = search.over_tasks_and_seeds(of_seeds)
    assert found == share_of_tasks([[1.0, 1.0], [0.0, 1.0], [0.5]])
    assert (found.tasks, found.samples) == (3, 5)


@pytest.mark.parametrize("equal", ["tokens", "episodes"])
def test_each_mode_has_records_and_a_table_of_its_own(search, tmp_path, equal):
    middle = "_episodes" if equal == "episodes" else ""
    for seed, solved in enumerate([{"0": 1.0, "1": 0.0}, {"0": 1.0, "1": 1.0}]):
        row = {"name": "mcts", "success": {"mean": sum(solved.values()) / 2}}
        run = {
            "settings": {"simulations": 8},
            "rows": [{**row, "tokens": 10.0 + seed, "episodes": 4.0}],
            "solved": {"mcts": solved},
        }
        path = tmp_path / f"maze{middle}_seed{seed}.json"
        path.write_text(json.dumps({"runs": [run]}))
    args = argparse.Namespace(example="maze", equal=equal, results=tmp_path)
    lines = search.table(args)
    found = share_of_tasks([[1.0, 1.0], [0.0, 1.0]])
    interval = f"{found.low:.2f} to {found.high:.2f}"
    assert lines[2:] == [f"| 8 | mcts | 0.75 (0.50, 1.00) | {interval} | 10 | 4.0 |"]
    other = "tokens" if equal == "episodes" else "episodes"
    args = argparse.Namespace(example="maze", equal=other, results=tmp_path)
    assert len(search.table(args)) == 2
