"""Loggers of a recipe: settings, and the real packages without a network."""

from __future__ import annotations

import importlib.util

import pytest

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.recipes import load_recipe
from rllib_llm.recipes.loggers import check_loggers, hyperparameters, require_loggers
from rllib_llm.recipes.recipe import recipe_from_dict
from rllib_llm.recipes.tuning import run_callbacks


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


def test_tensorboard_is_the_default():
    assert check_loggers(None) == {"tensorboard": {}}
    given = ["tensorboard", {"wandb": {"project": "p"}}, "mlflow"]
    assert check_loggers(given) == {
        "tensorboard": {},
        "wandb": {"project": "p"},
        "mlflow": {},
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wandb", "must be a list, e.g. "),
        (["wandbb"], "unknown logger 'wandbb'. Did you mean 'wandb'"),
        (["mlflow", {"mlflow": None}], "mlflow is listed twice"),
        ([{"wandb": 1}], "must be a name, or a name with its settings"),
        ([{"mlflow": {"tracking_url": "x"}}], "Did you mean 'tracking_uri'"),
        ([{"tensorboard": {"log_dir": "x"}}], "tensorboard has no setting 'log_dir'"),
    ],
)
def test_invalid_loggers_are_rejected(given, message):
    with pytest.raises(ConfigError, match=message):
        check_loggers(given)


def test_a_missing_package_is_named_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[wandb\]"):
        require_loggers({"tensorboard": {}, "wandb": {}})
    recipe = load_recipe("guess_number_grpo", ["loggers=[mlflow]"])
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[mlflow\]"):
        recipe.validate()


def test_a_recipe_without_tensorboard_names_no_curves(tmp_path):
    recipe = load_recipe("guess_number_grpo", ["loggers=[]"])
    progress, logger, *_ = run_callbacks(recipe, recipe.config, tmp_path)
    assert not progress.tensorboard and type(logger).__name__ == "NoTensorBoard"


def test_scalar_settings_are_hyperparameters():
    recipe = load_recipe("guess_number_grpo", ["training.lr=1e-3"])
    found = hyperparameters(recipe.resolved)
    assert found["training.lr"] == 1e-3 and found["env_config.upper"] == 15
    assert found["stop.training_iteration"] == 60 and "description" not in found


# The packages themselves --------------------------------------------------------------


def tiny(loggers):
    return recipe_from_dict(
        {
            "name": "logged",
            "algo": "GRPO",
            "env": "guess_number-v0",
            "env_config": {"upper": 7, "max_turns": 2},
            "language_model": {"tiny": {"hidden_size": 32}},
            "generation": {"max_new_tokens": 4},
            "rollouts": {"episodes_per_iteration": 8, "group_size": 4},
            "training": {"lr": 1e-3, "drop_zero_variance_groups": False},
            "loggers": loggers,
            "stop": {"training_iteration": 2},
        }
    )


@needs("mlflow")
@pytest.mark.ray
@pytest.mark.slow
def test_mlflow_gets_numbers_and_settings(ray_session, tmp_path, monkeypatch):
    # A server without a server: MLflow wants to be asked twice for plain files.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    store = (tmp_path / "mlruns").as_uri()
    recipe = tiny([{"mlflow": {"tracking_uri": store}}])
    recipe.validate()
    results = recipe.tuner(tmp_path / "runs").fit()
    assert not results.errors
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("logged")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.lr"] == "0.001"
    key = "env_runners/episode_return_mean"
    history = client.get_metric_history(run.info.run_id, key)
    assert [m.value for m in history] == list(results[0].metrics_dataframe[key])
    assert "learners/default_policy/entropy" in run.data.metrics
    assert not [k for k in run.data.metrics if "transcripts" in k or "histog" in k]


@needs("wandb")
@pytest.mark.ray
@pytest.mark.slow
def test_wandb_writes_offline(ray_session, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    recipe = tiny([{"wandb": {"project": "p", "mode": "offline"}}])
    recipe.validate()
    results = recipe.tuner(tmp_path / "runs").fit()
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert not results.errors
    (written,) = (tmp_path / "runs").glob("*/wandb/offline-run-*/run-*.wandb")
    data = written.read_bytes()
    assert b"env_runners/episode_return_mean" in data
    assert b"learners/default_policy/entropy" in data
    assert b"transcripts" not in data and b"histograms" not in data
