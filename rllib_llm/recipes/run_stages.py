"""Execution of a staged recipe, each stage in a folder of its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune import ResultGrid

from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.algorithms.driver.saved_episodes import EPISODES_FOLDER
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import search_spaces
from rllib_llm.recipes.locking import run_lock
from rllib_llm.recipes.recipe import Recipe, StagedRecipe
from rllib_llm.recipes.resuming import has_reached_stop, prepare_resume
from rllib_llm.recipes.tuning import make_tuner, seed_search, write_recipe
from rllib_llm.runs.folders import (
    RECIPE_FILE,
    default_storage,
    locate_checkpoint,
    stored_recipe,
)

if TYPE_CHECKING:
    from ray.tune import Result

    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

Progress = Callable[[str, float], None]
# Settings on which the prepared model depends.
_MODEL_FIELDS = ("language_model", "sft", "env_config", "seed", "debugging")


def run_stages(
    recipe: StagedRecipe,
    storage_path: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    prepare_model: Callable[[StagedRecipe], Any] | None = None,
    on_stage: Callable[[int, ResultGrid | None], bool] | None = None,
) -> list[ResultGrid | None]:
    """Run the stages in order; each starts from the policies of the one before.

    Args:
        recipe: The recipe.
        storage_path: Parent of the run folder; None: ``runs.default_storage``.
        resume: A run folder to continue; finished stages are not run again.
        prepare_model: Called instead of :func:`prepare_stages`.
        on_stage: Called with the index of a stage and its results; if it returns
            False, later stages are not run.

    Returns:
        Tune's results of each stage, up to the first that failed or was interrupted;
        None for stages that were finished before.

    Raises:
        ConfigError: A stage cannot load the policies of the one before, the ``stop`` of
            a stage with a successor was changed, or another process trains in the
            folder.
    """
    recipe.validate()
    run = Path(resume) if resume else _new_run(recipe, storage_path)
    with run_lock(run):
        return _run_all(recipe, run, prepare_model or prepare_stages, on_stage)


def _run_all(
    recipe: StagedRecipe,
    run: Path,
    prepare_model: Callable[[StagedRecipe], Any],
    on_stage: Callable[[int, ResultGrid | None], bool] | None,
) -> list[ResultGrid | None]:
    first = next_stage(recipe, run)
    configs = [stage.build_config() for stage in recipe.stages]
    if first == 0:
        configs[0] = prepare_model(recipe)
    write_recipe(recipe, run)
    by_stage: list[ResultGrid | None] = []
    for index, config in enumerate(configs):
        is_new = index >= first
        results = _run_stage(recipe, run, index, config) if is_new else None
        by_stage.append(results)
        # on_stage comes first: it reports also the results of a failed stage.
        continues = on_stage is None or on_stage(index, results)
        if not continues or (results is not None and not is_done(results)):
            break
    return by_stage


def is_done(results: ResultGrid) -> bool:
    """Return True if every trial finished without an error or an alarm."""
    ended = all((r.metrics or {}).get("done") for r in results)
    return ended and not results.errors and not any(map(stopped_by, results))


def stopped_by(result: Result) -> str | None:
    """Return the name of the alarm that stopped a trial, or None."""
    return (result.metrics or {}).get("alarms", {}).get("stopped_by")


def _new_run(recipe: StagedRecipe, storage_path: str | Path | None) -> Path:
    storage = Path(storage_path or default_storage()).expanduser().resolve()
    return storage / f"{recipe.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}"


def next_stage(recipe: StagedRecipe, run: Path) -> int:
    """Return the index of the first unfinished stage.

    Raises:
        ConfigError: The ``stop`` of a stage with a successor was changed.
    """
    folders = [run / folder for folder in recipe.folders]
    begun = [f for f in folders if (f / RECIPE_FILE).is_file()]
    if not begun:
        return 0
    last = len(begun) - 1
    for folder, stage in zip(begun[:last], recipe.stages, strict=False):
        stop = stored_recipe(folder)["stop"]
        if stop != stage.stop:
            raise ConfigError(
                f"stop={stage.stop} of {folder.name} differs from the {stop} with "
                "which it ran, and the next stage has already started from its "
                "result. Drop the change, or start a new run."
            )
    return last + has_reached_stop(begun[last], recipe.stages[last])


def _run_stage(
    recipe: StagedRecipe, run: Path, index: int, config: LLMConfig
) -> ResultGrid:
    stage, name = recipe.stages[index], recipe.folders[index]
    if index:
        before = run / recipe.folders[index - 1]
        config.initial_checkpoint = str(locate_checkpoint(before).checkpoint)
    for folder, earlier in zip(recipe.folders, recipe.stage_names, strict=True):
        if earlier in config.earlier_stages:
            config.earlier_stages[earlier] = str(run / folder / EPISODES_FOLDER)
    resume = None
    if (run / name).is_dir():
        try:
            resume = prepare_resume(run / name, stage)
        except CheckpointError as error:
            logger.warning("Stage %s starts again. %s", name, error)
            shutil.rmtree(run / name)
    seed_search(stage)
    return make_tuner(stage, run, config=config, run_name=name, resume=resume).fit()


def prepare_stages(recipe: StagedRecipe, on_progress: Progress | None = None) -> Any:
    """Prepare the first stage's model and check the prompts of all stages with it.

    Returns:
        The first stage's config, ready to train.
    """
    first, *later = recipe.stages
    config = prepare(first, on_progress)
    for stage in later:
        later_config = stage.build_config()
        later_config.resolved_model = config.resolved_model
        preflight(later_config)
    return config


def prepare(recipe: Recipe, on_progress: Progress | None = None) -> Any:
    """Return the recipe's config with its model prepared, unless trials differ in it.

    Prompts are checked against the context before SFT, which can take long.
    """
    config = recipe.build_config()
    if search_spaces.has_space({f: recipe.resolved.get(f) for f in _MODEL_FIELDS}):
        return config  # each trial prepares its model, cached per machine
    without_sft = recipe.build_config(search_spaces.first_of)
    without_sft.sft(demonstrations=0)
    without_sft.resolved_model = prepare_language_model(without_sft, on_progress)
    preflight(without_sft)
    config.resolved_model = prepare_language_model(config, on_progress)
    return config
