"""Sweeps that are killed and resumed, ended early by ASHA, or run by PBT."""

from __future__ import annotations

import json
import math
import time

import pytest
from started_runs import started, wait_until

from rllib_llm import yaml_io
from rllib_llm.recipes import recipe_from_dict
from rllib_llm.runs import read_run
from rllib_llm.runs.report import changes_of, make_report

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
RECIPE = {
    "algo": "LLMPPO",
    "env": "copy_probe-v0",
    "language_model": {"tiny": TINY},
    "generation": {"max_new_tokens": 3},
    "rollouts": {"episodes_per_iteration": 8},
    "training": {"lr": 1e-3},
    "env_runners": {"num_envs_per_env_runner": 8},
    "stop": {"training_iteration": 2},
}
RETURN = "env_runners/episode_return_mean"
# A metric that depends on nothing but the setting: the order of trials is known.
RATE = "learners/default_policy/policy_learning_rate"


def recipe(**changes):
    return {**RECIPE, **changes}


def rows_of(trial):
    """Return a trial's results by iteration, later lines over earlier ones."""
    lines = (trial / "result.json").read_text().splitlines()
    return {row["training_iteration"]: row for row in map(json.loads, lines)}


def finished(run):
    paths = run.glob("trial_*/result.json")
    return sum('"done": true' in path.read_text() for path in paths)


def start_and_kill(path, storage, trials):
    """Run a sweep as a command of its own until some trials are done; kill it."""
    with started("train", path, "--storage", storage) as process:

        def is_so():
            return any(finished(run) >= trials for run in storage.glob("sweep_*"))

        wait_until(process, is_so, seconds=400)
        time.sleep(6)  # Tune records the run every five seconds
    (run,) = storage.glob("sweep_*")
    return run


def test_a_killed_sweep_is_finished_and_its_report_is_right(tmp_path, capsys):
    from rllib_llm.cli.main import main

    path = tmp_path / "sweep.yaml"
    search = recipe(
        training={"lr": {"grid": [1e-3, 1e-2]}, "entropy_coeff": {"grid": [0.0, 0.1]}},
        seed={"grid": [0, 1]},
        tune={"metric": RETURN, "mode": "max", "max_concurrent_trials": 2},
    )
    path.write_text(yaml_io.dump(search))
    run = start_and_kill(path, tmp_path, trials=2)
    before = finished(run)
    assert 2 <= before < 8
    done = {
        p.parent.name: p.read_text()
        for p in run.glob("trial_*/result.json")
        if '"done": true' in p.read_text()
    }
    with pytest.raises(SystemExit) as status:
        main(["train", "--resume", str(run)])
    assert status.value.code in (0, None), capsys.readouterr().err
    trials = sorted(run.glob("trial_*"))
    assert len(trials) == 8
    for name, text in done.items():  # what had ended was not run again
        assert (run / name / "result.json").read_text() == text
    finals = {}
    for trial in trials:
        rows = rows_of(trial)
        assert sorted(rows) == [1, 2]
        config = json.loads((trial / "params.json").read_text())
        key = (config["lr"], config["entropy_coeff"], config["seed"])
        finals[key] = rows[2]["env_runners"]["episode_return_mean"]
    assert len(finals) == 8
    report = make_report(read_run(run))
    means = []
    for row in report.rows:
        params = row.setting.params
        a, b = (finals[params["lr"], params["entropy_coeff"], seed] for seed in (0, 1))
        means.append((a + b) / 2)
        half = 12.706204736 * math.sqrt(((a - b) ** 2 / 2) / 2)
        assert row.final.mean == pytest.approx((a + b) / 2)
        assert row.final.half == pytest.approx(half)
        assert row.states == {"done": 2}
    assert len(means) == 4 and means == sorted(means, reverse=True)


def fit(data, storage, name):
    """Run a recipe in this process; return the run's folder."""
    found = recipe_from_dict(data, name)
    found.validate()
    results = found.tuner(storage, run_name=name, callbacks=[]).fit()
    assert not results.errors, results.errors
    return storage / name


def test_asha_stops_trials_and_a_resume_keeps_them_stopped(tmp_path):
    from rllib_llm.recipes.resuming import prepare_resume, recipe_of_run
    from rllib_llm.recipes.tuning import make_tuner

    data = recipe(
        training={"lr": {"grid": [4e-3, 2e-3, 1e-3]}},
        stop={"training_iteration": 3},
        tune={
            "metric": RATE,
            "mode": "max",
            "max_concurrent_trials": 1,
            "scheduler": {"name": "asha", "grace_period": 1, "reduction_factor": 2},
        },
    )
    run = fit(data, tmp_path, "asha")
    reached = {t.params["lr"]: t.iterations for t in read_run(run).trials}
    assert reached == {4e-3: 3, 2e-3: 1, 1e-3: 1}
    assert prepare_resume(run, recipe_of_run(run)) is None
    # Killed after the last checkpoint and before Tune recorded the end of a trial.
    record = max(run.glob("experiment_state-*.json"))
    ended = record.read_text()
    running = ended.replace(
        r"\"status\": \"TERMINATED\"", r"\"status\": \"RUNNING\"", 1
    )
    assert running != ended
    record.write_text(running)
    assert prepare_resume(run, recipe_of_run(run)) is None
    longer = recipe_of_run(run, overrides=["stop.training_iteration=4"])
    how = prepare_resume(run, longer)
    make_tuner(longer, tmp_path, run_name="asha", callbacks=[], resume=how).fit()
    reached = {t.params["lr"]: t.iterations for t in read_run(run).trials}
    assert reached == {4e-3: 4, 2e-3: 1, 1e-3: 1}


def test_pbt_copies_weights_and_changes_settings(tmp_path):
    from rllib_llm.recipes.resuming import prepare_resume, recipe_of_run
    from rllib_llm.recipes.tuning import make_tuner

    scheduler = {
        "name": "pbt",
        "perturbation_interval": 2,
        "resample_probability": 0.0,
    }
    data = recipe(
        # Rewards are rare here; the entropy bonus moves weights in any case.
        training={"lr": {"loguniform": [1e-4, 1e-2]}, "entropy_coeff": 0.1},
        stop={"training_iteration": 3},
        tune={"num_samples": 2, "metric": RATE, "mode": "max", "scheduler": scheduler},
    )
    run = fit(data, tmp_path, "pbt")
    weak, strong = sorted(read_run(run).trials, key=lambda t: t.params["lr"])
    assert changes_of(strong) == []
    begun, changed = changes_of(weak)
    assert begun == {"iteration": 1, "lr": weak.params["lr"]}
    assert changed["iteration"] == 3
    rates = [min(strong.params["lr"] * factor, 1e-2) for factor in (0.8, 1.2)]
    assert any(changed["lr"] == pytest.approx(rate) for rate in rates)
    # Before the update both hold the same weights and go on with the same tasks and
    # random numbers: what they sample, and its entropy, are the same, to the last bit.
    mine, theirs = rows_of(weak.path), rows_of(strong.path)
    for iteration, same in ((1, True), (2, False), (3, True)):
        entropies = [
            rows[iteration]["learners"]["default_policy"]["entropy"]
            for rows in (mine, theirs)
        ]
        assert (entropies[0] == entropies[1]) is same, iteration
    assert (
        mine[3]["learners"]["default_policy"]["policy_learning_rate"] == changed["lr"]
    )

    longer = recipe_of_run(run, overrides=["stop.training_iteration=4"])
    how = prepare_resume(run, longer)
    make_tuner(longer, tmp_path, run_name="pbt", callbacks=[], resume=how).fit()
    last = {t.name: t.history[-1] for t in read_run(run).trials}
    for trial, rate in ((weak, changed["lr"]), (strong, strong.params["lr"])):
        row = last[trial.name]
        assert (row["training_iteration"], row["config/lr"]) == (4, rate)
        assert row[RATE] == rate


def test_sharing_modes_are_searched(tmp_path):
    modes = {
        "own": {
            "policies": ["a", "b"],
            "policy_mapping_fn": {"alice": "a", "bob": "b"},
        },
        "shared": {"policies": ["team"], "policy_mapping_fn": "team"},
    }
    grid = {"grid": sorted(modes)}
    data = recipe(
        env="secret_sum-v0",
        multi_agent={"sharing_modes": modes, "sharing_mode": grid},
        stop={"training_iteration": 1},
        tune={"metric": RETURN, "mode": "max"},
    )
    run = fit(data, tmp_path, "sharing")
    trained = {}
    for trial in read_run(run).trials:
        (row,) = rows_of(trial.path).values()
        assert trial.params == {"sharing_mode": trial.config["sharing_mode"]}
        trained[trial.params["sharing_mode"]] = {"a", "b", "team"} & set(
            row["learners"]
        )
    assert trained == {"own": {"a", "b"}, "shared": {"team"}}
    names = {
        row.setting.params["sharing_mode"] for row in make_report(read_run(run)).rows
    }
    assert names == {"own", "shared"}
