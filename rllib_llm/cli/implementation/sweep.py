"""``rllib-llm sweep report`` and ``rllib-llm plot``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from rllib_llm.callbacks.result_keys import RETURN
from rllib_llm.cli.tables import print_table
from rllib_llm.runs.plotting import (
    check_plotting,
    describe,
    lines_of,
    plot_lines,
    shown,
)
from rllib_llm.runs.reading import read_run
from rllib_llm.runs.report import Report, Row, as_json, make_report
from rllib_llm.runs.seed_statistics import Effect, Interval


def report(
    run: str,
    *,
    metric: str | None,
    mode: str | None,
    plot: Path | None,
    as_json_: bool,
    storage: Path | None,
) -> None:
    """Print the report of a sweep, and draw its curves."""
    if plot is not None:
        check_plotting(plot)
    result = make_report(read_run(run, storage), metric, mode)
    if plot is not None:
        plot_lines(lines_of([result.run]), [result.metric], plot)
    if as_json_:
        typer.echo(json.dumps(as_json(result), indent=2))
        return
    _print_report(result)
    if plot is not None:
        typer.echo(f"\ncurves: {plot}")


def plot(
    runs: list[str], *, metrics: list[str], out: Path, storage: Path | None
) -> None:
    """Draw the curves of runs and list them."""
    check_plotting(out)
    metrics = metrics or [RETURN]
    loaded = [read_run(run, storage) for run in runs]
    for run in loaded:
        for metric in metrics:
            run.check_metric(metric)
    lines = lines_of(loaded)
    plot_lines(lines, metrics, out)
    typer.echo(f"{out}: {len(lines)} curves")
    for line in lines:
        typer.echo(f"  {line.label}  ({len(line.setting.trials)} trials)")


def _print_report(result: Report) -> None:
    run, rows = result.run, result.rows
    trials = sum(len(row.setting.trials) for row in rows)
    order = "highest" if result.mode == "max" else "lowest"
    typer.echo(
        f"{run.name}: {len(rows)} settings, {trials} trials, {result.metric},  "
        f"{order} first\n"
    )
    names = list(rows[0].setting.params)
    columns = ["#", *names, "final", "best", "seeds", "iterations", "state"]
    cells = [_cells(index, row, names) for index, row in enumerate(rows, start=1)]
    print_table(columns, cells, numbers=["#", "seeds"])
    _print_changes(rows)
    _print_effects(result.effects)


def _cells(index: int, row: Row, names: list[str]) -> list[str]:
    low, high = row.iterations
    states = [f"{n} {s}" if len(row.states) > 1 else s for s, n in row.states.items()]
    return [
        str(index),
        *(shown(row.setting.params[name]) for name in names),
        interval(row.final),
        interval(row.best),
        str(len(row.setting.trials)),
        str(low) if low == high else f"{low}-{high}",
        ", ".join(states),
    ]


def interval(value: Interval | None) -> str:
    """Return e.g. ``0.93 +- 0.05``, or the mean only if there is one value."""
    if value is None:
        return "-"
    half = value.half
    return f"{value.mean:.4g}" + ("" if half is None else f" +- {half:.2g}")


def _print_changes(rows: list[Row]) -> None:
    changes = {n: c for row in rows for n, c in row.changes.items()}
    if not changes:
        return
    typer.echo("\nchanged during training (the table shows the initial settings):")
    for name, steps in changes.items():
        changed = [f"{s['iteration']}: {describe(_settings(s))}" for s in steps]
        typer.echo(f"  {name}  from iteration {'; '.join(changed)}")


def _settings(step: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in step.items() if k not in ("iteration", "seed")}


def _print_effects(effects: list[Effect]) -> None:
    if not effects:
        return
    typer.echo("\neffects (share of the variance between the trials' final values):")
    cells = []
    for effect in effects:
        if effect.trend is None:
            levels = [f"{shown(v)}: {interval(i)}" for v, i in effect.levels]
            by_value = "; ".join(levels)
        else:
            by_value = f"rank correlation {effect.trend:+.2f}"
        p_value = "-" if effect.p_value is None else f"{effect.p_value:.3f}"
        cells.append([effect.name, f"{effect.share:.0%}", p_value, by_value])
    print_table(["setting", "share", "p", "by value"], cells, numbers=["share"])
