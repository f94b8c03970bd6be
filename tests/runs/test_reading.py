"""Reading of complete and incomplete runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from run_builder import RETURN, nested, write_run, write_trial

from rllib_llm import yaml_io
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.runs import read_run


@pytest.fixture
def run(tmp_path):
    trials = [({"lr": lr, "seed": s}, [s, lr]) for lr in (0.1, 0.2) for s in (0, 1)]
    return write_run(tmp_path / "sweep", trials, searched=["lr", "seed"])


def test_a_run_has_its_recipe_and_its_trials(run):
    found = read_run(run)
    assert found.recipe["env"] == "bandit_probe-v0"
    assert [t.params for t in found.trials] == [
        {"lr": 0.1, "seed": 0},
        {"lr": 0.1, "seed": 1},
        {"lr": 0.2, "seed": 0},
        {"lr": 0.2, "seed": 1},
    ]
    trial = found.trials[3]
    assert trial.curve(RETURN) == ([1, 2], [1.0, 0.2])
    assert (trial.last(RETURN), trial.best(RETURN)) == (0.2, 1.0)
    assert trial.best(RETURN, "min") == 0.2 and trial.last("no/such") is None
    assert (trial.iterations, trial.seed, trial.state) == (2, 1, "done")
    assert trial.history[0]["config/lr"] == 0.2 and not list(trial.transcripts())
    assert RETURN in found.metrics and "config/lr" not in found.metrics


def test_a_run_is_named_by_path_trial_or_name(run):
    assert read_run("sweep", run.parent) == read_run(run)
    alone = read_run(run / "trial_00002")
    assert alone.path == run and alone.trials == (read_run(run).trials[2],)


def test_searched_keys_without_tunes_record(tmp_path):
    configs = [
        {"lr": lr, "gamma": 1, "f": f"<X object at 0x{i}>", "resolved_model": i}
        for i, lr in enumerate((0.1, 0.2))
    ]
    run = write_run(tmp_path / "run", [(c, [0]) for c in configs])
    assert [t.params for t in read_run(run).trials] == [{"lr": 0.1}, {"lr": 0.2}]
    for path in (run / "experiment_state-2026.json", run / "trial_00000/params.json"):
        path.write_text('{"half a ')
    assert read_run(run).trials[0].config == {}


def test_searched_values_may_be_nested_in_the_config(tmp_path):
    configs = [{"env_config": {"size": n}, "terms": [{"w": n}]} for n in (4, 5)]
    run = write_run(tmp_path / "run", [(c, [0]) for c in configs])
    keys = ["env_config/size", "terms/0/w"]
    state = json.dumps({"evaluated_params": dict.fromkeys(keys)})
    record = {"trial_data": [[state, "{}"]]}
    (run / "experiment_state-2026.json").write_text(json.dumps(record))
    assert [t.params for t in read_run(run).trials] == [
        dict.fromkeys(keys, 4),
        dict.fromkeys(keys, 5),
    ]


def line(iteration, value):
    return json.dumps(nested({"training_iteration": iteration, RETURN: value}))


@pytest.mark.parametrize("cut", [5, 20, len(line(3, 0.3)) - 1])
def test_histories_survive_kills_and_resumes(run, cut):
    path = run / "trial_00000" / "result.json"
    path.write_text(f"{line(1, 0.1)}\n{line(2, 0.2)}\n{line(3, 0.3)[:cut]}")
    trial = read_run(run).trials[0]
    assert trial.curve(RETURN) == ([1, 2], [0.1, 0.2])
    assert trial.state == "unfinished"
    with path.open("a") as file:  # resumed after iteration 1
        file.write(f"{line(2, 0.5)}\n{line(3, 0.6)}\n")
    assert read_run(run).trials[0].curve(RETURN) == ([1, 2, 3], [0.1, 0.5, 0.6])


def test_missing_values_are_left_out_of_curves(tmp_path):
    rows = [{"a": 1.0, "b": float("nan")}, {"b": 2.0, "c": True, "d": "x"}]
    write_trial(tmp_path / "run" / "trial_0", {}, rows)
    (trial,) = read_run(tmp_path / "run").trials
    assert trial.curve("a") == ([1], [1.0]) and trial.curve("b") == ([2], [2.0])
    assert read_run(tmp_path / "run").metrics == ["a", "b", "training_iteration"]


def test_failed_and_pending_trials(run):
    (run / "trial_00001" / "result.json").unlink()
    (run / "trial_00001" / "error.txt").write_text("Traceback")
    trial = read_run(run).trials[1]
    assert (trial.state, trial.iterations, trial.history) == ("failed", 0, ())
    assert trial.best(RETURN) is None


def test_the_last_started_stage_is_read(tmp_path):
    whole = tmp_path / "staged"
    write_run(whole / "1_sft", [({}, [1])])
    write_run(whole / "2_rl", [({}, [2])])
    stages = [{"name": name} for name in ("sft", "rl", "harder")]
    (whole / "recipe.yaml").write_text(yaml_io.dump({"stages": stages}))
    assert read_run(whole).name == "2_rl"
    assert read_run(whole / "1_sft").trials[0].last(RETURN) == 1


def test_errors_for_other_folders_and_unreported_metrics(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match="does not contain a trial"):
        read_run(empty)
    with pytest.raises(ConfigError, match="Did you mean 'env_runners/episode_return"):
        read_run(run).check_metric("env_runners/episode_retun_mean")
    with pytest.raises(ConfigError, match=r"It reported e\.g\. env_runners/episode"):
        read_run(run).check_metric("loss")
    read_run(run).check_metric(RETURN)


def test_reading_imports_neither_ray_nor_torch(run):
    code = (
        "import sys\nfrom rllib_llm.runs import read_run\n"
        f"assert len(read_run({str(run)!r}).trials) == 4\n"
        "heavy = {'torch', 'ray', 'pandas', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
