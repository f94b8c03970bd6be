"""Runs and trials as immutable records, read from disk."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_llm.callbacks.result_keys import ITERATION
from rllib_llm.errors import CheckpointError, ConfigError, did_you_mean
from rllib_llm.runs import checkpoints
from rllib_llm.runs import folders as runs
from rllib_llm.transcripts.jsonl import read_records
from rllib_llm.transcripts.reader import TRANSCRIPTS_FILE, read_transcripts

RESULT_FILE = "result.json"
PARAMS_FILE = "params.json"
_STATE_FILES = "experiment_state-*.json"
_ERROR_FILE = "error.txt"
_CONFIG = "config/"
# Keys that differ between trials without being searched.
_PER_TRIAL = ("resolved_model", "resolved_ref_model")
_ADDRESS = " object at 0x"

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial of a run.

    Attributes:
        path: The trial's folder.
        config: The algorithm's config as Tune wrote it last (``params.json``).
        params: Initial values of the searched settings by config key, e.g.
            ``{"lr": 1e-4, "seed": 0}``; empty without a search.
        history: One row per iteration, in order, by result keys with ``/`` between
            levels. If a resumed run repeated an iteration, the later row. The keys of
            ``params`` are in it as ``config/<key>``, since population based training
            changes them.
    """

    path: Path
    config: dict[str, Any]
    params: dict[str, Any]
    history: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def iterations(self) -> int:
        """Number of reported training iterations."""
        return int(self.history[-1][ITERATION]) if self.history else 0

    @property
    def seed(self) -> int | None:
        """The seed of the trial."""
        return self.config.get("seed")

    @property
    def state(self) -> str:
        """``done``, ``failed`` or ``unfinished`` (running, pending or interrupted)."""
        if self.history and self.history[-1].get("done"):
            return "done"
        return "failed" if (self.path / _ERROR_FILE).is_file() else "unfinished"

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the iterations that report ``metric``, and its values."""
        rows = [r for r in self.history if _is_number(r.get(metric))]
        return [int(r[ITERATION]) for r in rows], [float(r[metric]) for r in rows]

    def last(self, metric: str) -> float | None:
        """Return the last reported value, or None."""
        values = self.curve(metric)[1]
        return values[-1] if values else None

    def best(self, metric: str, mode: str = "max") -> float | None:
        """Return the highest (``mode="min"``: lowest) value, or None."""
        values = self.curve(metric)[1]
        return (max if mode == "max" else min)(values) if values else None

    def checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint, or None."""
        return checkpoints.newest_checkpoint(self.path)

    def transcripts(self) -> Iterator[dict[str, Any]]:
        """Yield the transcripts of the trial, if any."""
        if (self.path / TRANSCRIPTS_FILE).is_file():
            yield from read_transcripts(self.path / TRANSCRIPTS_FILE)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: a recipe and its trials.

    Attributes:
        path: The run's folder.
        recipe: Its ``recipe.yaml``; empty for runs of a user's own Tuner.
        trials: The trials in the order of their names.
    """

    path: Path
    recipe: dict[str, Any]
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def metrics(self) -> list[str]:
        """All numeric keys that any trial reported, sorted."""
        rows = (row for trial in self.trials for row in trial.history)
        names = {k for row in rows for k, v in row.items() if _is_number(v)}
        return sorted(k for k in names if not k.startswith(_CONFIG))

    def check_metric(self, metric: str) -> None:
        """Raise a ConfigError unless a trial reported ``metric``."""
        reported = self.metrics
        if metric not in reported:
            hint = did_you_mean(metric, reported)
            if not hint.startswith("Did you mean"):
                common = [k for k in reported if k.startswith(("env_runners/", "eval"))]
                hint = f"It reported e.g. {', '.join(common[:8] or reported[:8])}."
            raise ConfigError(f"{self.name} did not report {metric!r}. {hint}")


def read_run(given: str | Path, storage: Path | None = None) -> Run:
    """Read a finished, failed or running run.

    Args:
        given: Folder of a run or of a trial (the result then has only that trial), or
            name of a run in ``storage``. For a staged run, the last started stage is
            read.
        storage: Parent of run folders; None: :func:`runs.default_storage`.

    Raises:
        CheckpointError: The folder does not exist or does not contain a trial.
    """
    path = runs.find_run(given, storage or runs.default_storage())
    if (path / PARAMS_FILE).is_file():
        run, folders = path.parent, [path]
    else:
        stages = [p for p in runs.stage_folders(path) if _trial_folders(p)]
        run = stages[-1] if stages else path
        folders = _trial_folders(run)
    if not folders:
        raise CheckpointError(
            f"{path} does not contain a trial (a folder with {PARAMS_FILE}). Give a "
            "folder written by 'rllib-llm train' or Tune, after its first trial "
            "started."
        )
    configs = {p: _read_params(p) for p in _trial_folders(run)}
    keys = _searched(run, list(configs.values()))
    recipe_file = run / runs.RECIPE_FILE
    return Run(
        path=run,
        recipe=runs.stored_recipe(run) if recipe_file.is_file() else {},
        trials=tuple(_read_trial(p, configs[p], keys) for p in folders),
    )


def _trial_folders(run: Path) -> list[Path]:
    return sorted(p.parent for p in run.glob(f"*/{PARAMS_FILE}"))


def _read_params(trial: Path) -> dict[str, Any]:
    try:
        return json.loads((trial / PARAMS_FILE).read_text(encoding="utf-8"))
    except json.JSONDecodeError:  # being written right now
        return {}


def _read_trial(path: Path, config: dict[str, Any], keys: list[str]) -> Trial:
    rows = read_history(path / RESULT_FILE, keys)
    params = {key: _at(config, key) for key in keys}
    for key in keys:  # PBT overwrites params.json, so take the first row's values
        if rows and rows[0][f"{_CONFIG}{key}"] is not None:
            params[key] = rows[0][f"{_CONFIG}{key}"]
    return Trial(path=path, config=config, params=params, history=tuple(rows))


def _at(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("/"):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _searched(run: Path, configs: list[dict[str, Any]]) -> list[str]:
    """Return the searched config keys.

    They are in Tune's record; without one, they are the keys in which trials differ.
    """
    for path in sorted(run.glob(_STATE_FILES), reverse=True):
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))["trial_data"]
            states = [json.loads(state) for state, _ in entries]
        except (json.JSONDecodeError, KeyError):  # being written right now
            continue
        return sorted({key for state in states for key in state["evaluated_params"]})
    shown = [{k: json.dumps(v) for k, v in c.items()} for c in configs]
    differing = {k for c in shown for k in c if len({d.get(k) for d in shown}) > 1}
    # Objects without a JSON form are written as their repr, which has an address.
    printed = {k for c in shown for k, v in c.items() if _ADDRESS in v}
    return sorted(differing - printed - set(_PER_TRIAL))


def read_history(path: Path, config_keys: list[str] | None = None) -> list[Row]:
    """Return the rows of a ``result.json``, one per iteration, in order.

    Lines cut by a crash are skipped, but a row that a resumed run appended to one is
    read. Of several rows of an iteration, the last is used.

    Args:
        path: The file; no rows if it does not exist.
        config_keys: Keys of the config to keep, as ``config/<key>``.
    """
    kept = tuple(f"{_CONFIG}{key}" for key in config_keys or ())
    rows: dict[int, Row] = {}
    records = read_records(path, ITERATION) if path.is_file() else ()
    for result in records:
        flat = dict(_flat({k: v for k, v in result.items() if k != "config"}))
        config = result.get("config", {})
        flat |= {key: _at(config, key.removeprefix(_CONFIG)) for key in kept}
        rows.pop(int(flat[ITERATION]), None)
        rows[int(flat[ITERATION])] = flat
    return [rows[i] for i in sorted(rows)]


def _flat(result: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in result.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)
