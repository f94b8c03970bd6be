"""Staged runs on the command line: train, resume, evaluate, export."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess

import pytest
from started_runs import started, wait_for_checkpoint

from rllib_llm import yaml_io
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import load_recipe
from rllib_llm.runs import checkpoints
from rllib_llm.runs import folders as runs

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
PPO = {"algo": "LLMPPO", "training": {"lr": 1e-3, "minibatch_size": 4}}
RECIPE = {
    "env": "copy_probe-v0",
    "language_model": {"tiny": TINY},
    "generation": {"max_new_tokens": 3},
    "rollouts": {"episodes_per_iteration": 8},
    "env_runners": {"num_envs_per_env_runner": 8},
    "tune": {"checkpoint_frequency": 1},
    "stop": {"training_iteration": 2},
    "stages": [
        {
            "name": "sft",
            "algo": "SFT",
            "training": {"lr": 1e-2, "minibatch_size": 4},
            "expect": {"learners/default_policy/nll": {"max": 6}},
        },
        {"name": "first", **PPO, "expect": {"env_runners/episode_return_mean": 0}},
        {"name": "second", **PPO, "env_config": {"words": 3}},
    ],
}
# Numbers that depend on every weight and every sampled token.
TELLING = ("policy_loss", "entropy", "grad_norm", "vf_loss")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def write(path, **changes):
    path.write_text(yaml_io.dump({**RECIPE, **changes}))
    return path


def results(folder):
    """Return the results of the only trial of a stage, by iteration."""
    (path,) = folder.glob("trial_*/result.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["training_iteration"]: row for row in rows}


def json_lines(folder):
    """Return how many results the only trial of a stage reported."""
    (path,) = folder.glob("trial_*/result.json")
    return len(path.read_text().splitlines())


def test_a_stage_imitates_what_an_earlier_one_saved(tmp_path):
    saving = {"name": "rl", **PPO, "rollouts": {"save_episodes": True}}
    reading = {
        "name": "imitate",
        "algo": "SFT",
        "data": {"files": ["stage:rl"], "min_return": 0.0},
        "training": {"lr": 1e-2, "minibatch_size": 4},
    }
    path = write(tmp_path / "saved.yaml", stages=[saving, reading])
    assert all(load_recipe(path).run(tmp_path / "runs"))
    (run,) = (tmp_path / "runs").iterdir()
    files = sorted(p.name for p in (run / "1_rl" / "episodes").iterdir())
    assert [name.rpartition("-")[2] for name in files] == [
        "000001.jsonl",
        "000002.jsonl",
    ]
    assert results(run / "1_rl")[2]["num_episodes_saved"] == 8
    nll = [
        row["learners"]["default_policy"]["nll"]
        for row in results(run / "2_imitate").values()
    ]
    assert all(value > 0 for value in nll)


def test_a_stage_that_no_stage_saves_for(tmp_path):
    reading = {"name": "a", "algo": "SFT", "data": {"files": ["stage:rl"]}}
    path = write(tmp_path / "saved.yaml", stages=[reading])
    with pytest.raises(ConfigError, match="stage 'a': .*no earlier stage 'rl' saves"):
        load_recipe(path).validate()


def telling(row):
    learner = row["learners"]["default_policy"]
    return [row["env_runners"]["episode_return_mean"], *(learner[k] for k in TELLING)]


@pytest.fixture(scope="module")
def finished(storage, ray_session):
    """A run of three stages."""
    from rllib_llm.cli.implementation.train import train

    path = write(storage / "probe.yaml")
    options = {"resume": None, "dry_run": False, "verbose": False, "storage": storage}
    assert train([str(path)], as_test=True, **options) == 0
    (run,) = storage.glob("probe_*")
    return run


def test_every_stage_leaves_a_run_folder_of_its_own(finished):
    folders = ["1_sft", "2_first", "3_second"]
    assert sorted(p.name for p in finished.iterdir() if p.is_dir()) == folders
    for folder in folders:
        assert sorted(results(finished / folder)) == [1, 2]
    whole = runs.stored_recipe(finished)
    assert [stage["name"] for stage in whole["stages"]] == ["sft", "first", "second"]
    assert runs.stored_recipe(finished / "3_second")["env_config"] == {"words": 3}


def test_evaluate_and_export_take_the_last_stage(call, finished, tmp_path):
    status, out, err = call("evaluate", finished, "--episodes", 4, "--json")
    assert status == 0, err
    assert "/3_second/" in json.loads(out)["checkpoint"]
    status, stdout, err = call("export", finished, tmp_path / "model")
    assert status == 0 and "/3_second/" in stdout, err
    status, out, _ = call("evaluate", finished / "1_sft", "--episodes", 4, "--json")
    assert status == 0 and "/1_sft/" in json.loads(out)["checkpoint"]


def test_a_finished_run_is_judged_again_and_may_continue(call, finished):
    status, out, _ = call("train", "--resume", finished, "--as-test")
    assert status == 0 and "Nothing to do" in out and out.count(" ok") == 2
    earlier = "stages.sft.stop.training_iteration=3"
    status, _, err = call("train", "--resume", finished, earlier)
    assert status == 1 and "1_sft differs from the" in err
    longer = "stages.second.stop.training_iteration=3"
    status, _, err = call("train", "--resume", finished / "2_first", longer)
    assert status == 0, err
    assert sorted(results(finished / "3_second")) == [1, 2, 3]
    assert sorted(results(finished / "2_first")) == [1, 2]


def test_an_unmet_expectation_of_a_stage_ends_the_run(call, storage):
    expect = {"learners/default_policy/ref_kl": 1}
    stages = [{**RECIPE["stages"][0], "expect": expect}, RECIPE["stages"][1]]
    path = write(storage / "hopeless.yaml", stages=stages)
    status, out, _ = call("train", path, "--storage", storage, "--as-test")
    assert status == 1 and "not reported" in out
    (run,) = storage.glob("hopeless_*")
    assert not (run / "2_first").exists()


def test_the_dry_run_shows_all_stages(call, storage):
    status, out, err = call("train", write(storage / "dry.yaml"), "--dry-run")
    assert status == 0, err
    assert [line for line in out.splitlines() if line.startswith("stage ")] == [
        "stage 1_sft",
        "stage 2_first",
        "stage 3_second",
    ]
    assert out.count("LLMPPO on copy_probe-v0") == 2


def test_stages_run_from_python(storage):
    recipe = load_recipe(write(storage / "python.yaml"))
    every = recipe.run(storage, on_stage=lambda index, _: index < 1)
    assert [len(results) for results in every] == [1, 1]
    assert every[1][0].metrics["training_iteration"] == 2


@contextlib.contextmanager
def in_the_second_stage(path, storage, errors=subprocess.DEVNULL):
    """Start a run whose second stage has no end; give it once that has checkpoints.

    Yields:
        The process and the run's folder.
    """
    endless = "stages.first.stop.training_iteration=100000"
    arguments = ("train", path, endless, "--storage", storage)
    with started(*arguments, stderr=errors) as process:
        where = (storage, f"{path.stem}_*/2_first/trial_*", "checkpoint_000003")
        wait_for_checkpoint(process, *where, seconds=300)
        (run,) = storage.glob(f"{path.stem}_*")
        yield process, run


def test_a_run_killed_in_its_second_stage_resumes_exactly(call, storage):
    path = write(storage / "killed.yaml")
    with in_the_second_stage(path, storage) as (_, run):
        pass  # killed at the end
    (trial,) = (run / "2_first").glob("trial_*")
    at = (
        int(checkpoints.newest_checkpoint(trial).name[-6:]) + 1
    )  # one checkpoint an iteration
    first = results(run / "1_sft")
    end = f"stages.first.stop.training_iteration={at + 1}"
    status, _, err = call("train", "--resume", run, end)
    assert status == 0, err
    status, _, err = call("train", path, "--storage", storage / "reference", end)
    assert status == 0, err
    (reference,) = (storage / "reference").glob("killed_*")
    assert results(run / "1_sft") == first  # it was not run again
    for folder, iterations in (("2_first", (at + 1,)), ("3_second", (1, 2))):
        expected, got = results(reference / folder), results(run / folder)
        for iteration in iterations:
            assert telling(got[iteration]) == telling(expected[iteration]), folder
    assert sorted(got) == [1, 2]


def test_sigterm_saves_the_second_stage_and_begins_no_third(call, storage, tmp_path):
    path = write(storage / "ended.yaml", tune={"checkpoint_frequency": 3})
    with (
        open(tmp_path / "errors", "w") as errors,
        in_the_second_stage(path, storage, errors) as (process, run),
    ):
        first = results(run / "1_sft")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 143
    errors = (tmp_path / "errors").read_text()
    assert "SIGTERM: stopped before the end. Saved: " in errors, errors
    assert not (run / "3_second").exists()
    (trial,) = (run / "2_first").glob("trial_*")
    at = max(results(run / "2_first"))
    saved = checkpoints.newest_checkpoint(trial)
    assert str(saved) in errors.replace("\n", "")
    end = f"stages.first.stop.training_iteration={at + 1}"
    status, _, err = call("train", "--resume", run, end)
    assert status == 0, err
    assert results(run / "1_sft") == first
    assert sorted(results(run / "2_first")) == list(range(1, at + 2))
    assert json_lines(run / "2_first") == at + 1  # none was trained twice
    assert sorted(results(run / "3_second")) == [1, 2]
