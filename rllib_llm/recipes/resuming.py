"""Continue an interrupted run from its newest complete checkpoints.

Tune's own record of a run (``experiment_state-*.json``) is written now and then, so
after a hard kill it may lag behind the checkpoints on disk, or name one that was
deleted meanwhile. The disk is right: the record is brought in line with it first.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from pathlib import Path
from typing import Any

from ray.tune.experiment.trial import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.tune_config import ResumeConfig
from ray.tune.utils.serialization import TuneFunctionEncoder
from ray.tune.utils.util import flatten_dict

from rllib_llm import compat
from rllib_llm.algorithms.registry import register_trainables
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.recipes.recipe import (
    VERSIONS,
    Recipe,
    StagedRecipe,
    recipe_from_dict,
)
from rllib_llm.recipes.runs import (
    differing_keys,
    locate_checkpoint,
    newest_checkpoint,
    stored_recipe,
)
from rllib_llm.recipes.stages import STAGES, stages_by_name
from rllib_llm.recipes.stopping import RecipeStopper
from rllib_llm.results.reading import read_history

_STATE_FILES = "experiment_state-*.json"
# What Tune would bring back of the interrupted process: its stopping condition, which
# the recipe decides, and its wish to stop.
_FORGOTTEN = ("_stopper", "_should_stop_experiment", "_has_errored")


_MAY_CHANGE = ("stop", "name", "description")


def recipe_of_run(
    run: Path,
    given: Recipe | StagedRecipe | None = None,
    overrides: list[str] | None = None,
) -> Recipe | StagedRecipe:
    """Return the recipe to continue ``run`` with.

    Args:
        run: The run folder.
        given: The recipe the user named; None: the stored one.
        overrides: Dotted overrides of the stored recipe.

    Raises:
        ConfigError: If anything but ``stop`` differs from the stored recipe.
    """
    stored = {k: v for k, v in stored_recipe(run).items() if k != VERSIONS}
    if given is None:
        given = recipe_from_dict(stored, overrides=overrides or [])
    keys = differing_keys(_by_name(stored), _by_name(given.resolved))
    differing = [k for k in keys if _field(k) not in _MAY_CHANGE]
    if differing:
        raise ConfigError(
            f"{run.name} was started with another recipe; it differs in "
            f"{', '.join(differing)}. A run continues as it began (only 'stop' may "
            "change): drop the changes, or start a new run."
        )
    return given


def _by_name(resolved: dict[str, Any]) -> dict[str, Any]:
    return stages_by_name(resolved) if STAGES in resolved else resolved


def _field(key: str) -> str:
    """Return the field of a dotted key, of whichever stage."""
    parts = key.split(".")
    return parts[2] if parts[0] == STAGES and len(parts) > 2 else parts[0]


def has_reached_stop(run: Path, recipe: Recipe) -> bool:
    """Whether the newest checkpoint of a run of one trial is that of its end."""
    try:
        checkpoint = locate_checkpoint(run).checkpoint
    except CheckpointError:  # none yet
        return False
    last = flatten_dict(_metrics_of(checkpoint), delimiter="/")
    return RecipeStopper(recipe.stop).is_reached(last)


def stored_values(run: Path) -> dict[str, dict[str, Any]]:
    """Return the last reported value of every result of a run, by trial folder."""
    found: dict[str, dict[str, Any]] = {}
    for log in sorted(run.glob("trial_*/result.json")):
        values = found.setdefault(log.parent.name, {})
        for row in read_history(log):
            values |= row
    return found


def prepare_resume(run: Path, recipe: Recipe) -> ResumeConfig | None:
    """Bring Tune's record in line with the disk and say what to continue.

    Returns:
        What Tune is to do, or None if every trial has reached ``stop``.

    Raises:
        CheckpointError: If the run was killed before anything was recorded.
    """
    register_trainables()  # reading trials looks their algorithm up
    path, record = _read_record(run)
    trials = [_read_trial(*entry) for entry in record["trial_data"]]
    for trial in trials:
        _adopt_newest_checkpoint(trial, run)
    record["trial_data"] = [t.get_json_state() for t in trials]
    for key in _FORGOTTEN:
        record["runner_data"].pop(key, None)
    path.write_text(json.dumps(record, cls=TuneFunctionEncoder))
    stopper = RecipeStopper(recipe.stop)
    finished = [t for t in trials if t.status == Trial.TERMINATED]
    extended = [t for t in finished if not stopper.is_reached(_last_result(t))]
    if len(finished) == len(trials) and not extended:
        return None
    kind = ResumeConfig.ResumeType
    return ResumeConfig(
        finished=kind.RESUME if extended else kind.SKIP,
        unfinished=kind.RESUME,
        errored=kind.RESUME,
    )


def _read_record(run: Path) -> tuple[Path, dict[str, Any]]:
    """Return Tune's newest readable record; unreadable ones are set aside."""
    for path in sorted(run.glob(_STATE_FILES), reverse=True):
        try:
            return path, json.loads(path.read_text())
        except json.JSONDecodeError:  # the kill came while it was written
            path.rename(path.with_suffix(".json.incomplete"))
    raise CheckpointError(
        f"{run} holds no {_STATE_FILES}: the run was stopped before Tune recorded "
        f"anything. Start it anew: rllib-llm train {run / 'recipe.yaml'}"
    )


def _read_trial(state: str, metadata: str) -> Trial:
    trial = Trial.from_json_state(state)
    trial.restore_run_metadata(metadata)
    return trial


def _adopt_newest_checkpoint(trial: Trial, run: Path) -> None:
    folder = run / trial.storage.trial_dir_name
    newest = newest_checkpoint(folder)
    known = trial.checkpoint
    if newest is None or (known is not None and Path(known.path).name == newest.name):
        return
    compat.set_only_checkpoint(trial, newest, _metrics_of(newest))


def _metrics_of(checkpoint: Path) -> dict[str, Any]:
    """Return the result that was reported when ``checkpoint`` was written."""
    state = pickle.loads((checkpoint / "algorithm_state.pkl").read_bytes())
    iteration = state[TRAINING_ITERATION]
    log = checkpoint.parent / "result.json"
    for line in reversed(log.read_text().splitlines() if log.is_file() else []):
        with contextlib.suppress(json.JSONDecodeError):  # the line being written
            result = json.loads(line)
            if result.get(TRAINING_ITERATION) == iteration:
                return result
    return {TRAINING_ITERATION: iteration}


def _last_result(trial: Trial) -> dict[str, Any]:
    return flatten_dict(trial.last_result or {}, delimiter="/")
