"""A run and its trials as frozen records."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_llm.callbacks.keys import ITERATION
from rllib_llm.errors import CheckpointError, ConfigError, did_you_mean
from rllib_llm.runs import folders as runs
from rllib_llm.transcripts.jsonl import read_records
from rllib_llm.transcripts.reader import TRANSCRIPTS_FILE, read_transcripts

RESULT_FILE = "result.json"
PARAMS_FILE = "params.json"
_STATE_FILES = "experiment_state-*.json"
_ERROR_FILE = "error.txt"
_CONFIG = "config/"
# Every trial may have its own of these, whatever was searched.
_OWN = ("resolved_model",)
_ADDRESS = " object at 0x"

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial of a run.

    Attributes:
        path: The trial's folder.
        config: The algorithm's config as Tune wrote it last (``params.json``).
        params: What the search set for it at the beginning, by the config's keys, e.g.
            ``{"lr": 1e-4, "seed": 0}``; empty without a search.
        history: One row per iteration, in order: result keys with ``/`` between
            levels. Of an iteration that was played twice because the run was resumed,
            the later one. ``config/<key>`` is there for the keys of ``params``, since
            population based training changes them on the way.
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
        """Training iterations that were reported."""
        return int(self.history[-1][ITERATION]) if self.history else 0

    @property
    def seed(self) -> int | None:
        """The seed it ran with."""
        return self.config.get("seed")

    @property
    def state(self) -> str:
        """``done``, ``failed``, or ``unfinished`` (running, waiting or interrupted)."""
        if self.history and self.history[-1].get("done"):
            return "done"
        return "failed" if (self.path / _ERROR_FILE).is_file() else "unfinished"

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the iterations that report ``metric``, and its values there."""
        rows = [r for r in self.history if _is_number(r.get(metric))]
        return [int(r[ITERATION]) for r in rows], [float(r[metric]) for r in rows]

    def last(self, metric: str) -> float | None:
        """Return the last reported value; None if there is none."""
        values = self.curve(metric)[1]
        return values[-1] if values else None

    def best(self, metric: str, mode: str = "max") -> float | None:
        """Return the highest (``mode="min"``: lowest) value; None if there is none."""
        values = self.curve(metric)[1]
        return (max if mode == "max" else min)(values) if values else None

    def checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint, if any."""
        return runs.newest_checkpoint(self.path)

    def transcripts(self) -> Iterator[dict[str, Any]]:
        """Yield the kept episodes; nothing if none were kept."""
        if (self.path / TRANSCRIPTS_FILE).is_file():
            yield from read_transcripts(self.path / TRANSCRIPTS_FILE)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: a recipe and the trials that were made of it.

    Attributes:
        path: The run's folder.
        recipe: What its ``recipe.yaml`` says; empty for runs of a Tuner of one's own.
        trials: In the order of their names.
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
        """All keys with numbers that any trial reported, sorted."""
        rows = (row for trial in self.trials for row in trial.history)
        names = {k for row in rows for k, v in row.items() if _is_number(v)}
        return sorted(k for k in names if not k.startswith(_CONFIG))

    def check_metric(self, metric: str) -> None:
        """Raise a ConfigError unless some trial reported ``metric``."""
        known = self.metrics
        if metric not in known:
            hint = did_you_mean(metric, known)
            if not hint.startswith("Did you mean"):
                common = [k for k in known if k.startswith(("env_runners/", "eval"))]
                hint = f"Reported are e.g. {', '.join(common[:8] or known[:8])}."
            raise ConfigError(f"{self.name} never reported {metric!r}. {hint}")


def read_run(given: str | Path, storage: Path | None = None) -> Run:
    """Read a run that has ended, failed, or is still going on.

    Args:
        given: A run's folder, or a trial's (then the run has that trial alone); or the
            name of a run in ``storage``. Of a staged run it is the last stage begun.
        storage: Parent of run folders; None: :func:`runs.default_storage`.

    Raises:
        CheckpointError: If there is no such folder, or no trial in it.
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
            f"{path} holds no trial (a folder with {PARAMS_FILE}). Give a folder that "
            "'rllib-llm train' or Tune wrote, after its first trial began."
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
    except json.JSONDecodeError:  # it is being written
        return {}


def _read_trial(path: Path, config: dict[str, Any], keys: list[str]) -> Trial:
    rows = read_history(path / RESULT_FILE, keys)
    params = {key: _at(config, key) for key in keys}
    for key in keys:  # Tune writes params.json anew when a population changes it
        if rows and rows[0][f"{_CONFIG}{key}"] is not None:
            params[key] = rows[0][f"{_CONFIG}{key}"]
    return Trial(path=path, config=config, params=params, history=tuple(rows))


def _at(config: dict[str, Any], key: str) -> Any:
    for part in key.split("/"):
        if isinstance(config, list) and part.isdigit() and int(part) < len(config):
            config = config[int(part)]
        else:
            config = config.get(part) if isinstance(config, dict) else None
    return config


def _searched(run: Path, configs: list[dict[str, Any]]) -> list[str]:
    """Return the config's keys that a search set.

    Tune's record names them; without one, they are what trials differ in.
    """
    for path in sorted(run.glob(_STATE_FILES), reverse=True):
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))["trial_data"]
            states = [json.loads(state) for state, _ in entries]
        except (json.JSONDecodeError, KeyError):  # it is being written
            continue
        return sorted({key for state in states for key in state["evaluated_params"]})
    shown = [{k: json.dumps(v) for k, v in c.items()} for c in configs]
    differing = {k for c in shown for k in c if len({d.get(k) for d in shown}) > 1}
    printed = {k for c in shown for k, v in c.items() if _ADDRESS in v}
    return sorted(differing - printed - set(_OWN))


def read_history(path: Path, config_keys: list[str] | None = None) -> list[Row]:
    """Return the rows of a ``result.json``, one per iteration, in order.

    A line that a crash cut off is passed over, and what a resumed run appended to it is
    read. Of rows of the same iteration the later one counts.

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


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return not math.isnan(value)
