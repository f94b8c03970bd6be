"""Report of a sweep: ranked settings, their effects, and changes by PBT."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm.callbacks.result_keys import EVAL_SUCCESS, RETURN
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
    """A row of the report.

    Attributes:
        setting: The setting and its trials.
        final: Last values of the metric; None if no trial has reported it.
        best: Best values of the trials. On a noisy curve they are biased upwards.
        iterations: Minimum and maximum iterations of the trials.
        states: Number of trials by state: ``done``, ``failed`` and ``unfinished``.
        changes: Changes of settings by population based training, by trial.
    """

    setting: Setting
    final: Interval | None
    best: Interval | None
    iterations: tuple[int, int]
    states: dict[str, int]
    changes: dict[str, list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Report:
    """The settings of a sweep, best first, and their effects.

    Attributes:
        run: The run.
        metric: The metric by which settings are ranked.
        mode: ``max`` or ``min``.
        rows: The settings by final value, best first, those without one last.
        effects: Effects of settings, largest first; empty if PBT changed settings.
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
        metric: A result key; None: ``tune.metric`` of the recipe, or the success rate
            on held-out tasks if it was reported, or the mean return.
        mode: ``max`` or ``min``; None: ``tune.mode`` of the recipe, else ``max``.

    Raises:
        ConfigError: No trial reported the metric, or ``mode`` is invalid.
    """
    tune = run.recipe.get("tune") or {}
    if metric is None:
        evaluated = EVAL_SUCCESS if EVAL_SUCCESS in run.metrics else RETURN
        metric = tune.get("metric") or evaluated
    run.check_metric(metric)
    mode = mode or tune.get("mode") or "max"
    if mode not in ("max", "min"):
        raise ConfigError(f"mode={mode!r} must be 'max' or 'min'.")
    rows = [_row(setting, metric, mode) for setting in settings_of(run)]
    rows.sort(key=lambda row: _order(row, mode))
    # After changes the final values do not belong to one setting.
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
    """Return the settings of a trial and the iterations at which they changed.

    Returns:
        ``[{"iteration": 1, "lr": 1e-4}, {"iteration": 9, "lr": 8e-5}]``; empty if
        nothing changed.
    """
    changes: list[dict[str, Any]] = []
    for row in trial.history:
        values = {key: row.get(f"config/{key}") for key in trial.params}
        if not changes or {k: changes[-1][k] for k in values} != values:
            changes.append({"iteration": int(row["training_iteration"]), **values})
    return changes if len(changes) > 1 else []


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON data."""
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
