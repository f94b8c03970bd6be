"""Counts of lost and doubled groups in the soak."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="module")
def soak():
    with mock.patch.dict(os.environ):  # it moves Ray's folder for its own clusters
        import soak
    return soak


def row(soak, iteration, groups, size=4):
    return {
        "training_iteration": iteration,
        soak.TASKS: [[group, size] for group in groups],
        "num_episodes_lost": 0,
        "num_groups_retried": 1,
        "timestamp": 10 * iteration,
        "iterations_since_restore": iteration,
    }


def write(folder, rows):
    folder = folder / "run" / "trial"
    folder.mkdir(parents=True)
    text = "".join(json.dumps(r) + "\n" for r in rows)
    (folder / "result.json").write_text(text + '{"training_iter')  # being written


def test_each_group_in_its_turn_is_neither_lost_nor_doubled(soak, tmp_path):
    # The second iteration was made again, from a checkpoint behind the first.
    rows = [row(soak, i, groups) for i, groups in ((1, [0, 1]), (2, [2, 3]))]
    write(tmp_path, [*rows, rows[1], row(soak, 3, [4, 5])])
    found = soak.summary(soak.Ended([], 1.0), tmp_path)
    assert (found["iterations"], found["repeated"], found["retried"]) == (3, 1, 3)
    assert (found["lost_groups"], found["doubled_groups"]) == (0, 0)


@pytest.mark.parametrize(
    ("groups", "size", "lost", "doubled"),
    [
        ([2, 2], 4, 1, 0),  # one key: 3 is missing
        ([1, 2], 4, 1, 1),  # 1 again instead of 3
        ([2, 9], 4, 2, 0),  # 9 out of turn, 3 missing
        ([2, 3], 3, 2, 0),  # incomplete
    ],
)
def test_groups_out_of_turn_are_counted(soak, groups, size, lost, doubled):
    found = {1: row(soak, 1, [0, 1]), 2: row(soak, 2, groups, size)}
    assert soak.wrong_groups(found) == (lost, doubled)


def test_iterations_of_two_runs_are_compared_to_the_bit(soak, tmp_path):
    def learned(iteration, loss):
        return row(soak, iteration, [0]) | {
            "env_runners": {"episode_return_mean": 0.5},
            "learners": {"default_policy": {"total_loss": loss, "grad_norm": 1.0}},
        }

    nan = float("nan")
    one = [learned(1, 0.5), learned(1, 0.1), learned(2, nan), learned(3, 0.3)]
    write(tmp_path / "one", one)  # the last row of an iteration counts
    other = [learned(1, 0.1), learned(2, nan), learned(3, 0.30000000000000004)]
    write(tmp_path / "other", other)
    paths = tmp_path / "one", tmp_path / "other"
    assert soak.equal_iterations(*paths) == 2
    write(tmp_path / "third", [learned(1, 0.1 + 1e-9)])
    assert soak.equal_iterations(paths[0], tmp_path / "third") == 0


def test_restarts_are_timed_between_results(soak, tmp_path):
    rows = [row(soak, i, [i]) for i in (1, 2, 2, 3)]
    rows[2] |= {"timestamp": 95, "iterations_since_restore": 1}
    write(tmp_path, rows)
    assert soak.restart_seconds(tmp_path) == [75]
