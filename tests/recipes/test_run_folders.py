"""Finding runs and checkpoints, and refusing what is incomplete."""

from __future__ import annotations

import os
import pickle
import re

import pytest

from rllib_llm import yaml_io
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.manifest import write_manifest
from rllib_llm.recipes import recipe_from_dict
from rllib_llm.runs import checkpoints, folders

RECIPE = {"algo": "LLMPPO", "env": "guess_number-v0", "stop": {"training_iteration": 2}}


def write_checkpoint(folder, modules=("default_policy",)):
    """Write a folder like a checkpoint, its manifest last."""
    names = [f"{checkpoints.MODULES}/{m}/module_state.safetensors" for m in modules]
    for name in ("class_and_ctor_args.pkl", "algorithm_state.pkl", *names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps({"some": "state"}))
    (folder / "rllib_checkpoint.json").write_text("{}")
    write_manifest(folder)
    return folder


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "storage" / "run"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(yaml_io.dump(RECIPE))
    for age, name in ((20, "checkpoint_000000"), (10, "checkpoint_000001")):
        folder = write_checkpoint(run / "trial_a" / name)
        stamp = os.stat(folder).st_mtime - age
        os.utime(folder, (stamp, stamp))
    return run


def test_every_way_to_name_a_run_finds_the_newest_checkpoint(run):
    newest = run / "trial_a" / "checkpoint_000001"
    for given in (run, run / "trial_a", newest, "run"):
        found = folders.locate_checkpoint(folders.find_run(given, run.parent))
        assert (found.run, found.checkpoint) == (run, newest)
    older = run / "trial_a" / "checkpoint_000000"
    assert folders.locate_checkpoint(older).checkpoint == older
    assert folders.run_folder(newest) == run


def test_the_newest_checkpoint_has_the_highest_number_whatever_was_touched(run):
    trial = run / "trial_a"
    write_checkpoint(trial / "checkpoint_1000000")
    write_checkpoint(trial / "checkpoint_latest")  # no number: nobody's newest
    os.utime(trial / "checkpoint_000000", (2e9, 2e9))
    newest = trial / "checkpoint_1000000"
    assert checkpoints.newest_checkpoint(trial) == newest
    for given in (run, trial):
        assert folders.locate_checkpoint(given).checkpoint == newest


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path):
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"algorithm_state\.pkl has \d+ bytes of \d+"),
        (_flip, r"algorithm_state\.pkl has other content"),
        (os.unlink, r"algorithm_state\.pkl is missing"),
        (lambda path: _cut(path.with_name("manifest.json")), "is not readable"),
        (lambda path: path.with_name("manifest.json").unlink(), "written last"),
    ],
)
def test_damaged_checkpoints_are_skipped_with_a_warning(run, caplog, damage, message):
    newest = run / "trial_a" / "checkpoint_000001"
    damage(newest / "algorithm_state.pkl")
    assert not checkpoints.is_complete(newest)
    assert checkpoints.newest_checkpoint(run / "trial_a").name == "checkpoint_000000"
    assert folders.locate_checkpoint(run).checkpoint.name == "checkpoint_000000"
    (text, _) = (record.getMessage() for record in caplog.records)
    assert re.search(f"{newest} is damaged: .*{message}.*using .* instead", text)
    with pytest.raises(CheckpointError, match=message):
        folders.locate_checkpoint(newest)


def test_checkpoints_of_several_policies_need_all_of_them(tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint", ["alice", "bob", "critic"])
    assert checkpoints.is_complete(folder)
    (folder / checkpoints.MODULES / "bob" / "module_state.safetensors").unlink()
    assert not checkpoints.is_complete(folder)


def test_error_for_missing_runs_lists_existing_ones(run, tmp_path):
    with pytest.raises(CheckpointError, match="Runs in .*: run"):
        folders.find_run("no_such_run", run.parent)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match="does not contain a complete checkpoint"):
        folders.locate_checkpoint(empty)
    with pytest.raises(CheckpointError, match="is not part of a run"):
        folders.run_folder(empty)


def test_only_stop_may_change_on_resume(run):
    from rllib_llm.recipes.resuming import recipe_of_run

    longer = recipe_of_run(run, overrides=["stop.training_iteration=9"])
    assert longer.stop == {"training_iteration": 9}
    with pytest.raises(ConfigError, match=r"differs in seed, training\.lr\."):
        recipe_of_run(run, overrides=["training.lr=1", "seed=3"])
    other = recipe_from_dict({**RECIPE, "env_config": {"upper": 7}})
    with pytest.raises(ConfigError, match=r"differs in env_config"):
        recipe_of_run(run, other)


def test_the_result_of_a_checkpoint_is_the_row_of_its_iteration(tmp_path):
    from rllib_llm.recipes.resuming import _ALGORITHM_STATE, RESULT_FILE, _metrics_of

    checkpoint = tmp_path / "trial" / "checkpoint_000001"
    state = checkpoint / _ALGORITHM_STATE
    state.parent.mkdir(parents=True)
    state.write_text('{"training_iteration": 2}', encoding="ascii")
    assert _metrics_of(checkpoint) == {"training_iteration": 2}  # nothing was logged
    # Killed in its fourth iteration, resumed, and killed in its second again.
    rows = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4), (3, 0.5)]
    (tmp_path / "trial" / RESULT_FILE).write_text(
        "".join(f'{{"training_iteration": {i}, "x": {x}}}\n' for i, x in rows)
    )
    assert _metrics_of(checkpoint)["x"] == 0.4


def test_differing_keys_are_dotted_and_symmetric():
    a, b = {"x": {"y": 1, "z": 2}, "w": {}}, {"x": {"y": 3}, "v": 1}
    assert folders.differing_keys(a, b) == ["v", "w", "x.y", "x.z"]
    assert folders.differing_keys(b, a) == folders.differing_keys(a, b)
    assert folders.differing_keys(a, a) == []


def test_the_stored_recipe_loads_again(tmp_path):
    from rllib_llm.recipes.resuming import recipe_of_run
    from rllib_llm.recipes.tuning import write_recipe

    recipe = recipe_from_dict({**RECIPE, "training": {"lr": {"loguniform": [1e-6, 1]}}})
    write_recipe(recipe, tmp_path)
    assert "ray" in folders.stored_recipe(tmp_path)["versions"]
    assert recipe_of_run(tmp_path).resolved == recipe.resolved


def test_a_stop_key_that_is_never_reported_ends_the_run():
    from rllib_llm.recipes.stopping import RecipeStopper

    result = {"env_runners": {"success_rate": 0.5}, "training_iteration": 1}
    assert RecipeStopper({"env_runners/success_rate": 0.5})("t", result)
    assert not RecipeStopper({"training_iteration": 2})("t", result)
    assert not RecipeStopper({"evaluation/x": 1})("t", result)
    with pytest.raises(ConfigError, match="Did you mean 'env_runners/success_rate'"):
        RecipeStopper({"env_runners/succes_rate": 1})("t", result)
