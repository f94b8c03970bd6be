"""Restored self-play runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from self_play_helpers import LEARNER, TINY, books, kuhn, same, weights
from started_runs import started, wait_for_checkpoint

pytest.importorskip("pyspiel")
pytest.importorskip("openskill")

from rllib_llm import SelfPlay, yaml_io
from rllib_llm.runs import checkpoints

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

RECIPE = {
    "algo": "SelfPlay",
    "env": "open_spiel/kuhn_poker-v0",
    "env_config": {"style": "short"},
    "language_model": {"tiny": TINY},
    "generation": {"max_new_tokens": 5},
    "rollouts": {"episodes_per_iteration": 16},
    "sft": {"demonstrations": 200, "mistake_rate": 1.0, "lr": 5e-3},
    "league": {"pool_size": 2, "snapshot_min_games": 4, "snapshot_max_games": 12},
    "training": {"lr": 5e-3},
    "stop": {"training_iteration": 2},
    "tune": {"checkpoint_frequency": 1, "num_to_keep": None},
}


@pytest.mark.slow
def test_each_of_several_checkpoints_restores(tmp_path):
    """Regression of ray-project/ray#34778: only the first restore of a run worked."""
    algo, paths, noted = kuhn().build_algo(), [], []
    for i in range(3):
        algo.train()
        algo.train()
        paths.append(algo.save_to_path(tmp_path / f"checkpoint_{i}"))
        noted.append((books(algo), everyone(algo)))
    algo.stop()
    assert len({json.dumps(b, sort_keys=True) for b, _ in noted}) == 3
    for i, path in enumerate(paths):
        restored = SelfPlay.from_checkpoint(path)
        assert restored.training_iteration == 2 * (i + 1)
        for step in range(i, min(i + 2, 3)):  # the next iteration is reproduced too
            ours, theirs = noted[step]
            assert books(restored) == ours
            assert all(same(everyone(restored)[m], theirs[m]) for m in theirs)
            assert list(everyone(restored, "local")) == list(theirs)
            assert all(same(everyone(restored, "local")[m], theirs[m]) for m in theirs)
            if step < 2:
                restored.train()
                restored.train()
        restored.stop()


def everyone(algo, where="learner"):
    names = (LEARNER, "opponent_0", "opponent_1")
    return {m: weights(algo, m, where) for m in names}


@pytest.mark.slow
def test_two_learners_have_the_same_opponents(tmp_path):
    algo = kuhn().learners(num_learners=2).build_algo()
    for _ in range(3):
        algo.train()
    path = algo.save_to_path(tmp_path / "two")
    held = algo.learner_group.foreach_learner(
        lambda learner: {
            m: learner.module[m].unwrapped().get_state(inference_only=True)
            for m in (LEARNER, "opponent_0", "opponent_1")
        }
    )
    first, second = (result.get() for result in held)
    assert all(same(first[m], second[m]) for m in first)
    assert not same(first["opponent_0"], first[LEARNER])
    assert same(weights(algo, "opponent_0", "local"), first["opponent_0"])
    found = algo.measure_exploitability()
    assert found.information_states == 12
    noted = books(algo)
    algo.stop()
    alone = SelfPlay.from_checkpoint(path)
    assert books(alone) == noted
    alone.stop()


@pytest.mark.slow
def test_a_killed_run_resumed_by_tune_gives_the_same_ratings(tmp_path):
    """Regression of ray-project/ray#40183: added policies exist after a restore."""
    path = tmp_path / "killed.yaml"
    path.write_text(yaml_io.dump(RECIPE))
    endless = (path, "--storage", tmp_path / "runs", "stop.training_iteration=100000")
    with started("train", *endless) as process:
        where = (tmp_path / "runs", "killed_*/trial_*", "checkpoint_000004")
        wait_for_checkpoint(process, *where, seconds=240)
    (run,) = (tmp_path / "runs").glob("killed_*")
    (trial,) = run.glob("trial_*")
    at = (
        int(checkpoints.newest_checkpoint(trial).name[-6:]) + 1
    )  # one checkpoint an iteration
    end = f"stop.training_iteration={at + 3}"
    subprocess.run(command("--resume", run, end), check=True)
    whole = tmp_path / "reference"
    subprocess.run(command(path, "--storage", whole, end), check=True)
    (reference,) = whole.glob("killed_*")
    ours, theirs = results(run), results(reference)
    for iteration in range(at + 1, at + 4):
        league = ours[iteration]["league"]
        assert league == theirs[iteration]["league"]
        assert league["pool_size"] == 2 and league["rating"]["learner"] != 25
        for key in ("policy_loss", "grad_norm"):
            values = [r[iteration]["learners"][LEARNER][key] for r in (ours, theirs)]
            assert values[0] == values[1] != 0


def command(*arguments):
    return [sys.executable, "-m", "rllib_llm", "train", *map(str, arguments)]


def results(run):
    """Return all reported results of a run's only trial, by iteration."""
    (path,) = run.glob("trial_*/result.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["training_iteration"]: row for row in rows}


@pytest.mark.slow
def test_a_rollback_restores_opponents_and_ratings():
    fires = {"below": 100.0, "window": 1, "solved": None, "action": "rollback"}
    config = kuhn(episodes=16).alarms(
        entropy_collapse={**fires, "below": 0.0}, snapshot_interval=1, max_rollbacks=1
    )
    algo = config.build_algo()
    algo.train()
    algo.train()  # the second iteration confirms the first one's snapshot as good
    good = algo.guard._snapshots.good.load()
    algo.guard._alarms["entropy_collapse"].thresholds["below"] = 100.0
    result = algo.train()
    assert result["alarms"]["num_rollbacks"] == 1
    assert algo.driver_state().keys() == set(good) - {"learners"}
    league = next(k for k in algo.driver_state() if "league" in k)
    assert repr(algo.driver_state()[league]) == repr(good[league])
    learned = good["learners"]["learner"]["rl_module"]
    for module_id in algo.config.llm_module_ids:
        assert same(weights(algo, module_id), weights(algo, module_id, "local"))
        now = weights(algo, module_id)
        assert same(now, {k: learned[module_id][k] for k in now})
    algo.stop()
