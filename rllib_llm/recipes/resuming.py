"""Continuation of an interrupted run from its newest complete checkpoints.

Tune writes its record of a run (``experiment_state-*.json``) only now and then. After a
hard kill it may be older than the checkpoints on disk, or name a deleted one. The
checkpoints on disk are authoritative, so the record is updated from them first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ray.tune.experiment.trial import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.tune_config import ResumeConfig
from ray.tune.utils.serialization import TuneFunctionEncoder
from ray.tune.utils.util import flatten_dict

from rllib_llm import compat, json_state
from rllib_llm.algorithms.driver.checkpoint_state import PACKAGE_STATE, STATE_FILE
from rllib_llm.algorithms.registry import register_trainables
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.recipes.recipe import VERSIONS, Recipe, StagedRecipe, recipe_from_dict
from rllib_llm.recipes.stages import STAGES, stages_by_name
from rllib_llm.recipes.stopping import RecipeStopper
from rllib_llm.recipes.tune_settings import is_pbt, num_trials, paths_searched
from rllib_llm.runs.checkpoints import is_complete, newest_checkpoint
from rllib_llm.runs.folders import differing_keys, locate_checkpoint, stored_recipe
from rllib_llm.runs.reading import RESULT_FILE, read_history, read_records

_ALGORITHM_STATE = f"{PACKAGE_STATE}/{STATE_FILE}"
_STATE_FILES = "experiment_state-*.json"
# State of the interrupted process that Tune would restore: its stopping condition,
# which the recipe defines, and its request to stop, which would end the resumed run at
# once.
_DROPPED = ("_stopper", "_should_stop_experiment", "_has_errored")
# Fields of a recipe that may differ from those of the run.
_MAY_CHANGE = ("stop", "name", "description")


def recipe_of_run(
    run: Path,
    given: Recipe | StagedRecipe | None = None,
    overrides: list[str] | None = None,
) -> Recipe | StagedRecipe:
    """Return the recipe with which to continue ``run``.

    Args:
        run: The run folder.
        given: The recipe that the user gave; None: the stored one.
        overrides: Dotted overrides of the stored recipe.

    Raises:
        ConfigError: Another field than ``stop`` differs from the stored recipe.
    """
    stored = {k: v for k, v in stored_recipe(run).items() if k != VERSIONS}
    if given is None:
        given = recipe_from_dict(stored, overrides=overrides or [])
    keys = differing_keys(_by_name(stored), _by_name(given.resolved))
    differing = [k for k in keys if _field(k) not in _MAY_CHANGE]
    if differing:
        raise ConfigError(
            f"{run.name} was started with another recipe, which differs in "
            f"{', '.join(differing)}. Only 'stop' may change when a run is resumed. "
            "Drop the changes, or start a new run."
        )
    return given


def _by_name(resolved: dict[str, Any]) -> dict[str, Any]:
    return stages_by_name(resolved) if STAGES in resolved else resolved


def _field(key: str) -> str:
    """Return the recipe field of a dotted key, with or without a stage prefix."""
    parts = key.split(".")
    return parts[2] if parts[0] == STAGES and len(parts) > 2 else parts[0]


def has_reached_stop(run: Path, recipe: Recipe) -> bool:
    """Return True if the newest checkpoint of a one-trial run has reached ``stop``."""
    try:
        checkpoint = locate_checkpoint(run).checkpoint
    except CheckpointError:  # no checkpoint yet
        return False
    last = flatten_dict(_metrics_of(checkpoint), delimiter="/")
    return RecipeStopper(recipe.stop).is_reached(last)


def stored_values(run: Path) -> dict[str, dict[str, Any]]:
    """Return the last reported value of every metric of a run, by trial folder."""
    by_trial: dict[str, dict[str, Any]] = {}
    for log in sorted(run.glob(f"trial_*/{RESULT_FILE}")):
        values = by_trial.setdefault(log.parent.name, {})
        for row in read_history(log):
            values |= row
    return by_trial


def prepare_resume(run: Path, recipe: Recipe) -> ResumeConfig | None:
    """Update Tune's record from the checkpoints and return how to resume.

    Returns:
        The resume settings for Tune; None if every trial has reached ``stop``.

    Raises:
        CheckpointError: The run was killed before Tune recorded anything.
    """
    # Trial.from_json_state looks up the trainable by name.
    register_trainables()
    path, record = _read_record(run)
    trials = [_read_trial(*entry) for entry in record["trial_data"]]
    mutable = _mutable_keys(recipe)
    for trial in trials:
        _adopt_newest_checkpoint(trial, run, mutable)
    old = RecipeStopper(stored_recipe(run)["stop"])
    new = RecipeStopper(recipe.stop)
    for trial in trials:
        if trial.status == Trial.TERMINATED and _may_go_on(trial, old, new):
            trial.set_status(Trial.PENDING)
        elif new.is_reached(_metrics_of_checkpoint(trial)):
            # Killed after its last checkpoint and before Tune recorded the end.
            trial.set_status(Trial.TERMINATED)
    record["trial_data"] = [t.get_json_state() for t in trials]
    for key in _DROPPED:
        record["runner_data"].pop(key, None)
    path.write_text(json.dumps(record, cls=TuneFunctionEncoder))
    finished = all(t.status == Trial.TERMINATED for t in trials)
    if finished and len(trials) == num_trials(recipe.tune, recipe.resolved):
        return None
    kind = ResumeConfig.ResumeType
    return ResumeConfig(finished=kind.SKIP, unfinished=kind.RESUME, errored=kind.RESUME)


def _may_go_on(trial: Trial, old: RecipeStopper, new: RecipeStopper) -> bool:
    """Return True if a terminated trial has not reached the new ``stop``."""
    last = _last_result(trial)
    # A trial that a scheduler ended stays ended, also if ``stop`` was raised.
    by_scheduler = last.get("done") and not old.is_reached(last)
    return not by_scheduler and not new.is_reached(last)


def _mutable_keys(recipe: Recipe) -> list[str]:
    """Return the config keys that PBT changes while trials train."""
    if not is_pbt(recipe.tune):
        return []
    return [path.rpartition(".")[2] for path in paths_searched(recipe.resolved)]


def _read_record(run: Path) -> tuple[Path, dict[str, Any]]:
    """Return Tune's newest readable record; rename unreadable ones."""
    for path in sorted(run.glob(_STATE_FILES), reverse=True):
        try:
            return path, json.loads(path.read_text())
        except json.JSONDecodeError:  # killed while writing it
            path.rename(path.with_suffix(".json.incomplete"))
    raise CheckpointError(
        f"{run} does not contain {_STATE_FILES}: the run was stopped before Tune "
        f"recorded anything. Start it again: rllib-llm train {run / 'recipe.yaml'}"
    )


def _read_trial(state: str, metadata: str) -> Trial:
    trial = Trial.from_json_state(state)
    trial.restore_run_metadata(metadata)
    return trial


def _adopt_newest_checkpoint(trial: Trial, run: Path, mutable: list[str]) -> None:
    """Make a trial resume from its newest checkpoint, with the settings in it."""
    config = trial.config
    newest = newest_checkpoint(run / trial.storage.trial_dir_name)
    if newest is not None:
        metrics, recorded = _metrics_of(newest), trial.checkpoint
        path = Path(recorded.path) if recorded is not None else None
        if path is None or not _has_exploited(path, newest, metrics):
            config = {**config, **metrics.get("config", {})}
            if path != newest:
                compat.set_only_checkpoint(trial, newest, metrics)
    if mutable:
        compat.change_trial_config(trial, {key: config[key] for key in mutable})


def _has_exploited(recorded: Path, newest: Path, metrics: dict[str, Any]) -> bool:
    """Return True if a PBT trial copied another's checkpoint and wrote none since."""
    if recorded.parent.name == newest.parent.name or not is_complete(recorded):
        return False
    return _metrics_of(recorded)[TRAINING_ITERATION] >= metrics[TRAINING_ITERATION]


def _metrics_of(checkpoint: Path) -> dict[str, Any]:
    """Return the result that was reported when ``checkpoint`` was written."""
    state = json_state.loads(
        (checkpoint / _ALGORITHM_STATE).read_text(encoding="ascii")
    )
    iteration = state[TRAINING_ITERATION]
    log = checkpoint.parent / RESULT_FILE
    rows = read_records(log, TRAINING_ITERATION) if log.is_file() else ()
    reported = [row for row in rows if row[TRAINING_ITERATION] == iteration]
    return reported[-1] if reported else {TRAINING_ITERATION: iteration}


def _metrics_of_checkpoint(trial: Trial) -> dict[str, Any]:
    """Return the flattened result of a trial's newest checkpoint; {} without one."""
    if trial.checkpoint is None:
        return {}
    return flatten_dict(_metrics_of(Path(trial.checkpoint.path)), delimiter="/")


def _last_result(trial: Trial) -> dict[str, Any]:
    return flatten_dict(trial.last_result or {}, delimiter="/")
