"""``rllib-llm compare``: recipes, results and play of two runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import typer

from rllib_llm.cli.implementation.sweep import interval
from rllib_llm.cli.tables import print_paired, print_table
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.paired_outcomes import Paired, paired_outcomes
from rllib_llm.runs.comparing import (
    differences,
    last_values,
)
from rllib_llm.runs.folders import default_storage, find_run, locate_checkpoint
from rllib_llm.runs.plotting import check_plotting, lines_of, plot_lines, shown
from rllib_llm.runs.reading import Run, read_run

# Two runs play the same tasks only if these fields of their recipes are equal.
_TASK_FIELDS = ("env", "env_config")


def compare(
    a: str,
    b: str,
    *,
    episodes: int,
    greedy: bool,
    metric: str,
    plot: Path | None,
    as_json: bool,
    storage: Path | None,
    verbose: bool,
) -> None:
    """Print the differences between two runs, and tests of which plays better."""
    if plot is not None:
        check_plotting(plot)
    first, second = read_run(a, storage), read_run(b, storage)
    if episodes:
        _check_same_tasks(first, second)
    if plot is not None:
        first.check_metric(metric)
        plot_lines(lines_of([first, second]), [metric], plot)
    tests: list[Paired] = []
    num_failed = 0
    if episodes:
        paths = [find_run(given, storage or default_storage()) for given in (a, b)]
        checkpoints = [locate_checkpoint(path).checkpoint for path in paths]
        tests, num_failed = _play_both(checkpoints, episodes, greedy, verbose)
    if as_json:
        typer.echo(json.dumps(_as_json(first, second, tests, num_failed), indent=2))
        return
    _print_recipes(first, second)
    _print_results(first, second)
    _print_play(tests, num_failed, greedy)
    if plot is not None:
        typer.echo(f"\ncurves: {plot}")


def _check_same_tasks(a: Run, b: Run) -> None:
    for key in _TASK_FIELDS:
        one, other = a.recipe.get(key), b.recipe.get(key)
        if (one or None) != (other or None):
            raise ConfigError(
                f"{a.name} and {b.name} do not play the same tasks: {key} is {one!r} "
                f"and {other!r}. Give --episodes 0 to compare recipes and results only."
            )


def _play_both(
    checkpoints: list[Path], episodes: int, greedy: bool, verbose: bool
) -> tuple[list[Paired], int]:
    """Play the same held-out tasks with both; return the tests and the failed tasks."""
    from rllib_llm.cli.load_run import load_algorithm
    from rllib_llm.cli.session import ray_session
    from rllib_llm.evaluation.outcomes import held_out_tasks, play_tasks

    tasks: Any = None
    played = []
    with ray_session(verbose=verbose):
        for checkpoint in checkpoints:
            algo = load_algorithm(checkpoint)
            tasks = tasks or held_out_tasks(algo.config, episodes)
            played.append(play_tasks(algo, tasks, greedy=greedy))
            algo.stop()
    tests, num_failed = paired_outcomes(*played)
    if not tests:
        raise ConfigError(
            f"The environment failed in all of the {episodes} tasks for at least one "
            "of the policies. Run 'rllib-llm check' on it."
        )
    return tests, num_failed


def _print_recipes(a: Run, b: Run) -> None:
    rows = [(key, shown(x), shown(y)) for key, x, y in differences(a, b)]
    typer.echo(f"A: {a.name}\nB: {b.name}\n")
    if rows:
        print_table(["setting", "A", "B"], rows)
    else:
        typer.echo("The recipes are the same.")


def _print_results(a: Run, b: Run) -> None:
    first, second = last_values(a), last_values(b)
    rows = [
        (metric, interval(first.get(metric)), interval(second.get(metric)))
        for metric in {**first, **second}
    ]
    iterations = [
        str(max((trial.iterations for trial in run.trials), default=0))
        for run in (a, b)
    ]
    typer.echo("")
    print_table(["last value", "A", "B"], [("training_iteration", *iterations), *rows])


def _print_play(tests: list[Paired], num_failed: int, greedy: bool) -> None:
    if not tests:
        return
    mode = "greedy" if greedy else "sampled"
    typer.echo(f"\nplayed: the same {tests[0].n} held-out tasks, {mode}")
    if num_failed:
        typer.echo(f"excluded, because the environment failed: {num_failed} tasks")
    print_paired(tests, "A", "B")


def _as_json(a: Run, b: Run, tests: list[Paired], num_failed: int) -> dict[str, Any]:
    return {
        "a": str(a.path),
        "b": str(b.path),
        "settings": {key: [x, y] for key, x, y in differences(a, b)},
        "last_values": [
            {metric: dataclasses.asdict(v) for metric, v in last_values(run).items()}
            for run in (a, b)
        ],
        "played": [dataclasses.asdict(paired) for paired in tests],
        "left_out": num_failed,
    }
