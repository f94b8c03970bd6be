"""Run a staged recipe: one stage after another, each in a folder of its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from ray.tune import ResultGrid

from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes import spaces
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

logger = logging.getLogger("rllib_llm")

Progress = Callable[[str, float], None]
# Settings that decide which model is prepared.
_MODEL_FIELDS = ("language_model", "sft", "env_config", "seed", "debugging")


def run_stages(
    recipe: StagedRecipe,
    storage_path: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    prepare_model: Callable[[StagedRecipe], Any] | None = None,
    on_stage: Callable[[int, ResultGrid | None], bool] | None = None,
) -> list[ResultGrid | None]:
    """Run the stages in their order; each begins with the policies of the one before.

    Args:
        recipe: What to run.
        storage_path: Parent of the run folder; None: ``runs.default_storage``.
        resume: A run folder to go on in; finished stages are not run again.
        prepare_model: Called in the place of :func:`prepare_stages`.
        on_stage: Called with a stage's index and its results; what follows is left out
            if it returns False.

    Returns:
        Tune's results of each stage up to the first that failed or was interrupted;
        None of those that were finished before.

    Raises:
        ConfigError: If a stage cannot take over what the one before hands over,
            ``stop`` of a stage was changed that others have built upon, or another
            process trains in the run folder.
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
    begin = next_stage(recipe, run)
    configs = [stage.build_config() for stage in recipe.stages]
    if begin == 0:
        configs[0] = prepare_model(recipe)
    write_recipe(recipe, run)
    every: list[ResultGrid | None] = []
    for index, config in enumerate(configs):
        is_new = index >= begin
        results = _run_stage(recipe, run, index, config) if is_new else None
        every.append(results)
        goes_on = on_stage is None or on_stage(index, results)
        if not goes_on or (results is not None and not is_done(results)):
            break
    return every


def is_done(results: ResultGrid) -> bool:
    """Whether every trial came to its end, without an error and not by an alarm."""
    ended = all((r.metrics or {}).get("done") for r in results)
    return ended and not results.errors and not any(map(stopped_by, results))


def stopped_by(result: Any) -> str | None:
    """Return the alarm that ended a trial, if one did."""
    return (result.metrics or {}).get("alarms", {}).get("stopped_by")


def _new_run(recipe: StagedRecipe, storage_path: str | Path | None) -> Path:
    storage = Path(storage_path or default_storage()).expanduser().resolve()
    return storage / f"{recipe.name}_{datetime.now():%Y-%m-%d_%H-%M-%S}"


def next_stage(recipe: StagedRecipe, run: Path) -> int:
    """Return the index of the first stage that is not finished.

    Raises:
        ConfigError: If ``stop`` of a stage was changed that others have built upon.
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
                f"stop={stage.stop} of {folder.name}, which ran until {stop}: the "
                "stage after it has begun with its result. Drop the change, or start "
                "a new run."
            )
    return last + has_reached_stop(begun[last], recipe.stages[last])


def _run_stage(recipe: StagedRecipe, run: Path, index: int, config: Any) -> ResultGrid:
    stage, name = recipe.stages[index], recipe.folders[index]
    if index:
        before = run / recipe.folders[index - 1]
        config.initial_checkpoint = str(locate_checkpoint(before).checkpoint)
    how = None
    if (run / name).is_dir():
        try:
            how = prepare_resume(run / name, stage)
        except CheckpointError as error:
            logger.warning("Stage %s begins anew. %s", name, error)
            shutil.rmtree(run / name)
    seed_search(stage)
    return make_tuner(stage, run, config=config, run_name=name, resume=how).fit()


def prepare_stages(recipe: StagedRecipe, on_progress: Progress | None = None) -> Any:
    """Prepare the first stage's model; hold the prompts of all stages against it.

    Returns:
        The first stage's config, ready to train.
    """
    first, *later = recipe.stages
    config = prepare(first, on_progress)
    for stage in later:
        bare = stage.build_config()
        bare.resolved_model = config.resolved_model
        preflight(bare)
    return config


def prepare(recipe: Recipe, on_progress: Progress | None = None) -> Any:
    """Return the recipe's config with its model prepared, unless trials differ in it.

    Prompts are held against the context before the long part begins.
    """
    config = recipe.build_config()
    if spaces.has_space({f: recipe.resolved.get(f) for f in _MODEL_FIELDS}):
        return config  # every trial prepares its own, once per machine
    bare = recipe.build_config(spaces.first_of)
    bare.sft(demonstrations=0)
    bare.resolved_model = prepare_language_model(bare, on_progress)
    preflight(bare)
    config.resolved_model = prepare_language_model(config, on_progress)
    return config
