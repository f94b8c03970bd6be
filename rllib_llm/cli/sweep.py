"""``rllib-llm sweep report`` and ``rllib-llm plot``: what runs found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from rllib_llm.callbacks.keys import RETURN
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
    found = make_report(read_run(run, storage), metric, mode)
    if plot is not None:
        plot_lines(lines_of([found.run]), [found.metric], plot)
    if as_json_:
        typer.echo(json.dumps(as_json(found), indent=2))
        return
    _print_report(found)
    if plot is not None:
        typer.echo(f"\ncurves: {plot}")


def plot(
    runs: list[str], *, metrics: list[str], out: Path, storage: Path | None
) -> None:
    """Draw curves of runs, and say what was drawn."""
    check_plotting(out)
    metrics = metrics or [RETURN]
    found = [read_run(run, storage) for run in runs]
    for run in found:
        for metric in metrics:
            run.check_metric(metric)
    lines = lines_of(found)
    plot_lines(lines, metrics, out)
    typer.echo(f"{out}: {len(lines)} curves")
    for line in lines:
        typer.echo(f"  {line.label}  ({len(line.setting.trials)} trials)")


def _print_report(found: Report) -> None:
    run, rows = found.run, found.rows
    trials = sum(len(row.setting.trials) for row in rows)
    order = "highest" if found.mode == "max" else "lowest"
    typer.echo(
        f"{run.name}: {len(rows)} settings, {trials} trials, {found.metric}, "
        f"{order} first\n"
    )
    names = list(rows[0].setting.params)
    columns = ["#", *names, "final", "best", "seeds", "iterations", "state"]
    cells = [_cells(index, row, names) for index, row in enumerate(rows, start=1)]
    print_table(columns, cells, numbers=["#", "seeds"])
    _print_changes(rows)
    _print_effects(found.effects)


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
    """Return ``0.93 +- 0.05``, or the value alone where there is one."""
    if value is None:
        return "-"
    half = value.half
    return f"{value.mean:.4g}" + ("" if half is None else f" +- {half:.2g}")


def _print_changes(rows: list[Row]) -> None:
    changes = {n: c for row in rows for n, c in row.changes.items()}
    if not changes:
        return
    typer.echo("\nchanged while training (settings above are those of the beginning):")
    for name, steps in changes.items():
        told = [f"{s['iteration']}: {describe(_without(s))}" for s in steps]
        typer.echo(f"  {name}  from iteration {'; '.join(told)}")


def _without(step: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in step.items() if k not in ("iteration", "seed")}


def _print_effects(effects: list[Effect]) -> None:
    if not effects:
        return
    typer.echo("\nwhat mattered (share of the variance between trials' final values):")
    cells = []
    for effect in effects:
        if effect.trend is None:
            levels = [f"{shown(v)}: {interval(i)}" for v, i in effect.levels]
            told = "; ".join(levels)
        else:
            told = f"rank correlation {effect.trend:+.2f}"
        p_value = "-" if effect.p_value is None else f"{effect.p_value:.3f}"
        cells.append([effect.name, f"{effect.share:.0%}", p_value, told])
    print_table(["setting", "share", "p", "by value"], cells, numbers=["share"])
