"""Ray Tune's Tuner of a recipe, for a new or a resumed run."""

from __future__ import annotations

import os
import platform
import random
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ray import tune
from ray.tune.tune_config import ResumeConfig

from rllib_llm import compat, yaml_io
from rllib_llm.algorithms.driver.saved_episodes import EPISODES_FOLDER
from rllib_llm.algorithms.registry import register_trainables
from rllib_llm.recipes import search_spaces
from rllib_llm.recipes.interruption import SaveAndStop
from rllib_llm.recipes.locking import HoldRunLock, run_lock
from rllib_llm.recipes.loggers import TENSORBOARD, build_loggers, hyperparameters
from rllib_llm.recipes.recipe import VERSIONS
from rllib_llm.recipes.schedulers import make_scheduler
from rllib_llm.recipes.stopping import RecipeStopper
from rllib_llm.runs.folders import RECIPE_FILE, default_storage
from rllib_llm.version import __version__

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from rllib_llm.recipes.recipe import Recipe, StagedRecipe
    from rllib_llm.types import LLMConfig


def make_tuner(
    recipe: Recipe,
    storage_path: str | Path | None = None,
    *,
    config: LLMConfig | None = None,
    run_name: str | None = None,
    callbacks: list[Any] | None = None,
    resume: ResumeConfig | None = None,
) -> tune.Tuner:
    """Return a Tuner for ``recipe`` and write its ``recipe.yaml``.

    Args:
        recipe: The recipe.
        storage_path: Parent of the run folder; None: :func:`default_storage`.
        config: The config to train instead of ``recipe.config``, e.g. with its model
            prepared.
        run_name: Name of the run folder; None: recipe name and time.
        callbacks: Tune callbacks; None: those of :func:`run_callbacks`.
        resume: How to resume the run of that name; None: start a new run.
    """
    register_trainables()
    config = recipe.build_config() if config is None else config
    storage = Path(storage_path or default_storage()).expanduser().resolve()
    name = run_name or f"{recipe.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    if config.save_episodes is True:
        config.save_episodes = str(storage / name / EPISODES_FOLDER)
    if callbacks is None:
        callbacks = run_callbacks(recipe, config, storage / name)
    with run_lock(storage / name):
        write_recipe(recipe, storage / name)
    # Tune would fail on results without ``tune.metric``, and evaluation metrics are not
    # in every result. Recipe.validate checks the name instead.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    tuner = tune.Tuner(
        recipe.algo,
        param_space=config,
        tune_config=_tune_config(recipe, storage / name),
        run_config=tune.RunConfig(
            name=name,
            storage_path=str(storage),
            stop=RecipeStopper(recipe.stop),
            callbacks=[HoldRunLock(storage / name), SaveAndStop(), *callbacks],
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=recipe.tune["checkpoint_frequency"],
                num_to_keep=recipe.tune["num_to_keep"],
                checkpoint_at_end=True,  # evaluate, export and stages load this one
            ),
            failure_config=tune.FailureConfig(max_failures=recipe.tune["max_failures"]),
            verbose=0,  # the package's own callbacks report progress
        ),
    )
    if resume is not None:
        compat.continue_run(tuner, resume)
    return tuner


def run_callbacks(recipe: Recipe, config: LLMConfig, run: Path) -> list[Any]:
    """Return the Tune callbacks that report and log a run.

    Args:
        recipe: The recipe.
        config: Its config, with the model prepared.
        run: The run folder.
    """
    from rllib_llm.callbacks import run_callbacks as build

    return build(
        recipe.name,
        config,
        stop=recipe.stop,
        time_budget_s=recipe.tune["time_budget_s"],
        expect={k: b["min"] for k, b in recipe.expect.items() if "min" in b},
        hyperparameters=hyperparameters(recipe.resolved),
        tensorboard=TENSORBOARD in recipe.loggers,
        loggers=build_loggers(recipe, run),
    )


def write_recipe(recipe: Recipe | StagedRecipe, run: Path) -> None:
    """Write the resolved recipe and the versions in use into a run folder."""
    run.mkdir(parents=True, exist_ok=True)
    text = yaml_io.dump({**recipe.resolved, VERSIONS: versions()})
    header = f"# Resolved by rllib-llm {__version__}. Loadable: rllib-llm train FILE\n"
    (run / RECIPE_FILE).write_text(header + text, encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of the packages on which results depend."""
    packages = ("ray", "torch", "transformers", "gymnasium", "numpy")
    installed = {p: metadata.version(p) for p in packages}
    return {
        "rllib_llm": __version__,
        "python": platform.python_version(),
        **installed,
    }


def _tune_config(recipe: Recipe, run: Path) -> tune.TuneConfig:
    keys = ("num_samples", "metric", "mode", "max_concurrent_trials", "time_budget_s")
    return tune.TuneConfig(
        **{k: recipe.tune[k] for k in keys},
        scheduler=make_scheduler(recipe, run),
        trial_name_creator=_trial_name,
        trial_dirname_creator=_trial_name,
    )


def seed_search(recipe: Recipe) -> None:
    """Seed the global generators from which Tune and PBT draw search spaces."""
    seed = search_spaces.first_of(recipe.resolved.get("seed", 0))
    np.random.seed(seed)
    random.seed(seed)


def _trial_name(trial: Trial) -> str:
    return f"trial_{trial.trial_id}"
