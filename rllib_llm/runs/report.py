"""What a sweep found: settings in order, what mattered, what changed on the way."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm.callbacks.keys import EVAL_SUCCESS, RETURN
from rllib_llm.errors import ConfigError
from rllib_llm.runs.reading import Run, Trial
from rllib_llm.runs.seed_statistics import (
    Effect,
    Interval,
    Setting,
    effects,
    settings_of,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A setting's line in the report.

    Attributes:
        setting: The setting and its trials.
        final: Last values of the metric; None if no trial has reported it.
        best: Best value of each trial. Of a noisy curve it is higher than what a new
            evaluation would find.
        iterations: Fewest and most iterations of its trials.
        states: ``done``, ``failed`` and ``unfinished``, with how many trials of each.
        changes: By trial, what population based training changed.
    """

    setting: Setting
    final: Interval | None
    best: Interval | None
    iterations: tuple[int, int]
    states: dict[str, int]
    changes: dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Report:
    """A sweep's settings, best first, and what mattered.

    Attributes:
        run: The run.
        metric: What settings are ordered by.
        mode: ``max`` or ``min``.
        rows: The settings by their final value, best first; those without one last.
        effects: What mattered, most first; empty where values changed on the way.
    """

    run: Run
    metric: str
    mode: str
    rows: list[Row]
    effects: list[Effect]


def make_report(run: Run, metric: str | None = None, mode: str | None = None) -> Report:
    """Return the report of a run, finished or not.

    Args:
        run: From :func:`rllib_llm.runs.read_run`.
        metric: A result key; None: ``tune.metric`` of the recipe, else held-out
            success where it was reported, else the mean return.
        mode: ``max`` or ``min``; None: ``tune.mode`` of the recipe, else ``max``.

    Raises:
        ConfigError: If no trial reported the metric.
    """
    asked = run.recipe.get("tune") or {}
    if metric is None:
        evaluated = EVAL_SUCCESS if EVAL_SUCCESS in run.metrics else RETURN
        metric = asked.get("metric") or evaluated
    run.check_metric(metric)
    mode = mode or asked.get("mode") or "max"
    if mode not in ("max", "min"):
        raise ConfigError(f"mode={mode!r} must be 'max' or 'min'.")
    rows = [_row(setting, metric, mode) for setting in settings_of(run)]
    rows.sort(key=lambda row: _order(row, mode))
    changed = any(row.changes for row in rows)
    return Report(
        run, metric, mode, rows, [] if changed else effects(run, metric, mode)
    )


def _row(setting: Setting, metric: str, mode: str) -> Row:
    states = [t.state for t in setting.trials]
    iterations = [t.iterations for t in setting.trials]
    return Row(
        setting=setting,
        final=setting.final(metric),
        best=setting.best(metric, mode),
        iterations=(min(iterations), max(iterations)),
        states={state: states.count(state) for state in sorted(set(states))},
        changes={t.name: c for t in setting.trials if (c := changes_of(t))},
    )


def _order(row: Row, mode: str) -> tuple[bool, float]:
    if row.final is None:
        return True, 0.0
    return False, -row.final.mean if mode == "max" else row.final.mean


def changes_of(trial: Trial) -> list[dict[str, Any]]:
    """Return what a trial was trained with, and from which iteration on.

    Returns:
        ``[{"iteration": 1, "lr": 1e-4}, {"iteration": 9, "lr": 8e-5}]``; empty if
        nothing changed.
    """
    found: list[dict[str, Any]] = []
    for row in trial.history:
        values = {key: row.get(f"config/{key}") for key in trial.params}
        if not found or {k: found[-1][k] for k in values} != values:
            found.append({"iteration": int(row["training_iteration"]), **values})
    return found if len(found) > 1 else []


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "run": str(report.run.path),
        "metric": report.metric,
        "mode": report.mode,
        "settings": [
            {
                "params": row.setting.params,
                "trials": [t.name for t in row.setting.trials],
                "seeds": [t.seed for t in row.setting.trials],
                "final": _plain(row.final),
                "best": _plain(row.best),
                "iterations": list(row.iterations),
                "states": row.states,
                "changes": row.changes,
                "curve": [
                    {"iteration": iteration, **dataclasses.asdict(interval)}
                    for iteration, interval in row.setting.curve(report.metric)
                ],
            }
            for row in report.rows
        ],
        "effects": [
            {
                "name": effect.name,
                "share": effect.share,
                "trend": effect.trend,
                "p_value": effect.p_value,
                "levels": [
                    {"value": value, **dataclasses.asdict(interval)}
                    for value, interval in effect.levels
                ],
            }
            for effect in report.effects
        ],
    }


def _plain(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else dataclasses.asdict(interval)
