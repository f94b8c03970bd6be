"""A reward model from its file of comparisons to a reward of another run."""

from __future__ import annotations

import json

import pytest

from rllib_llm import yaml_io
from rllib_llm.components.registry import bind

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def pairs(path, numbers):
    rows = [
        {"prompt": f"1 to {n}?", "chosen": f"{n // 2}", "rejected": f"it is {n}"}
        for n in numbers
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_train_evaluate_export_and_use(call, tmp_path):
    from rllib_llm.cli.implementation.train import train

    recipe = tmp_path / "judge.yaml"
    recipe.write_text(
        yaml_io.dump(
            {
                "algo": "RewardModel",
                "env": "guess_number-v0",
                "data": {"files": pairs(tmp_path / "train.jsonl", range(5, 29))},
                "language_model": {"tiny": TINY},
                "rollouts": {"episodes_per_iteration": 24},
                "training": {"lr": 3e-3, "minibatch_size": 8},
                "stop": {"training_iteration": 3},
            }
        )
    )
    options = {"resume": None, "dry_run": False, "verbose": False}
    storage = tmp_path / "runs"
    assert train([str(recipe)], as_test=False, storage=storage, **options) == 0
    (run,) = storage.glob("judge_*")
    other = pairs(tmp_path / "other.jsonl", range(30, 50))
    numbers = tmp_path / "numbers.json"
    status, out, err = call("evaluate", run, "--pairs", other, "--out", numbers)
    assert status == 0, err
    found = json.loads(numbers.read_text())["pairs"]
    assert found["pairs"] == 20 and found["accuracy"]["mean"] > 0.8
    assert "20 preference pairs" in out and "calibration" in out
    status, _, err = call("evaluate", run)
    assert status != 0 and "Give files with pairs" in " ".join(err.split())
    folder = tmp_path / "judge"
    status, out, err = call("export", run, folder)
    assert status == 0, err
    assert "AutoModelForSequenceClassification" in out
    assert "text-classification" in (folder / "README.md").read_text()
    bind("reward", {"name": "scored", "model": str(folder), "normalize": True})
