"""``rllib-llm train``: prepare, run and judge a recipe."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rllib_llm.cli.failures import describe, describe_full_disk
from rllib_llm.cli.implementation.view import write_view
from rllib_llm.cli.progress_bars import preparing
from rllib_llm.cli.session import quiet_loggers, ray_session
from rllib_llm.errors import ConfigError, StorageError
from rllib_llm.recipes import Recipe, StagedRecipe, load_recipe, search_spaces
from rllib_llm.recipes.boundary import errors_as_config_error
from rllib_llm.recipes.expectations import ExpectationResult, judge
from rllib_llm.runs.folders import default_storage, find_run, run_folder

if TYPE_CHECKING:
    from ray.tune import Result, ResultGrid

    from rllib_llm.recipes.interruption import Interruption

INTERRUPTED = 130


def train(
    arguments: list[str],
    *,
    resume: str | None,
    dry_run: bool,
    as_test: bool,
    storage: Path | None,
    verbose: bool,
) -> int:
    """Run the command and return its exit status."""
    if not verbose:
        quiet_loggers()
    name, overrides = _split(arguments)
    if resume is None:
        if name is None:
            raise ConfigError(
                "The recipe is missing. Give a name ('rllib-llm list examples'), a "
                "YAML "
                "file, or --resume RUN."
            )
        recipe, run = load_recipe(name, overrides), None
    else:
        recipe, run = _resumed(name, overrides, resume, storage)
    recipe.validate()
    if as_test and not any(stage.expect for stage in recipe.stages):
        raise ConfigError(
            f"--as-test requires the field 'expect', which {recipe.name} does not "
            "have. "
            "Add it, e.g. expect: {env_runners/episode_return_mean: 0.5}."
        )
    if dry_run:
        from rllib_llm.cli.plan import show_plan

        with errors_as_config_error(recipe.name):
            show_plan(recipe)
        return 0
    from rllib_llm.algorithms.driver.placement import require_nodes
    from rllib_llm.recipes.interruption import interruptible

    requests = [_request(stage) for stage in recipe.stages]
    cpus = max(r.required_resources.get("CPU", 1) for r, _ in requests)
    # In this order: ray.init installs a SIGTERM handler, which ours must replace.
    with ray_session(cpus=cpus, verbose=verbose), interruptible() as interruption:
        for request, wait_s in requests:
            require_nodes(request.bundles, request.strategy, wait_s)
        try:
            return _run(recipe, run, storage, interruption, as_test=as_test)
        # Any type: with a full disk, Ray, Tune and pyarrow raise errors of their own,
        # and reading files that were cut short raises still others.
        except Exception as error:
            message = describe_full_disk(error, storage or default_storage())
            if message is None:
                raise
            raise StorageError(message) from error


def _run(
    recipe: Recipe | StagedRecipe,
    run: Path | None,
    storage: Path | None,
    interruption: Interruption,
    *,
    as_test: bool,
) -> int:
    """Train and return the exit status."""
    if isinstance(recipe, StagedRecipe):
        return _fit_stages(recipe, run, storage, interruption, as_test=as_test)
    from rllib_llm.recipes.locking import run_lock

    with run_lock(run) if run else contextlib.nullcontext():
        results = _fit(recipe, run, storage, interruption)
    if results is None:
        return 0
    write_view(Path(results.experiment_path))
    return _outcome(recipe, results, interruption, as_test=as_test)


def _split(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Separate the recipe from its overrides."""
    if arguments and "=" not in arguments[0]:
        return arguments[0], arguments[1:]
    return None, arguments


def _resumed(
    name: str | None, overrides: list[str], resume: str, storage: Path | None
) -> tuple[Recipe | StagedRecipe, Path]:
    from rllib_llm.recipes.resuming import recipe_of_run

    run = run_folder(find_run(resume, storage or default_storage()))
    given = load_recipe(name, overrides) if name is not None else None
    return recipe_of_run(run, given, overrides), run


def _request(recipe: Recipe) -> tuple[Any, float]:
    """Return what one trial requests, and the seconds it may wait for nodes."""
    config = recipe.build_config(search_spaces.first_of)
    request = config.algo_class.default_resource_request(config)
    return request, config.wait_for_nodes_s


def _fit(
    recipe: Recipe, run: Path | None, storage: Path | None, interruption: Interruption
) -> Any:
    """Train; return Tune's results, or None if the run has reached ``stop``."""
    from rllib_llm.recipes.resuming import prepare_resume
    from rllib_llm.recipes.tuning import make_tuner, seed_search

    seed_search(recipe)
    if run is None:
        tuner = make_tuner(recipe, storage, config=_with_model(recipe))
        with interruption.training():
            return tuner.fit()
    resume = prepare_resume(run, recipe)
    if resume is None:
        reached = ", ".join(f"{k} {v}" for k, v in recipe.stop.items())
        typer.echo(
            f"Nothing to do: {run.name} has reached {reached}. To continue: rllib-llm "
            f"train --resume {run} stop.training_iteration=N"
        )
        return None
    config = _with_model(recipe)
    tuner = make_tuner(
        recipe, run.parent, config=config, run_name=run.name, resume=resume
    )
    with interruption.training():
        return tuner.fit()


def _with_model(recipe: Recipe | StagedRecipe) -> Any:
    """Return the config with its model prepared, showing the progress."""
    from rllib_llm.recipes.run_stages import prepare, prepare_stages

    with preparing() as on_progress:
        if isinstance(recipe, StagedRecipe):
            return prepare_stages(recipe, on_progress)
        return prepare(recipe, on_progress)


def _fit_stages(
    recipe: StagedRecipe,
    run: Path | None,
    storage: Path | None,
    interruption: Interruption,
    *,
    as_test: bool,
) -> int:
    """Train the stages; return the exit status."""
    from rllib_llm.recipes.resuming import stored_values
    from rllib_llm.recipes.run_stages import next_stage, run_stages

    finished = next_stage(recipe, run) if run else 0
    if run and finished == len(recipe.stages):
        typer.echo(
            f"Nothing to do: {run.name} has finished all stages. To continue: "
            "rllib-llm "
            f"train --resume {run} "
            f"stages.{recipe.stage_names[-1]}.stop.training_iteration=N"
        )
    statuses: list[int] = []

    def judge_stage(index: int, results: ResultGrid | None) -> bool:
        state = "was already finished" if index < finished else "ended"
        typer.echo(f"stage {recipe.folders[index]} {state}")
        stage = recipe.stages[index]
        if results is not None:
            write_view(Path(results.experiment_path).parent)
            statuses.append(_outcome(stage, results, interruption, as_test=as_test))
        else:
            assert run is not None  # only a run that is resumed has finished stages
            values = stored_values(run / recipe.folders[index])
            statuses.append(_judge(stage, values) if as_test else 0)
        return statuses[-1] == 0 and interruption.number is None

    def prepare_model(recipe: StagedRecipe) -> Any:
        with interruption.preparing():
            return _with_model(recipe)

    with interruption.training():
        run_stages(
            recipe,
            storage,
            resume=run,
            prepare_model=prepare_model,
            on_stage=judge_stage,
        )
    return statuses[-1] or (interruption.status if interruption.number else 0)


def _outcome(
    recipe: Recipe, results: ResultGrid, interruption: Interruption, *, as_test: bool
) -> int:
    """Print the reason of a failure, if any, and return the exit status."""
    from rllib_llm.recipes.run_stages import stopped_by

    if results.errors:
        failed = next(r for r in results if r.error is not None)
        full = describe_full_disk(failed.error, Path(results.experiment_path))
        reason = f"StorageError: {full}" if full else describe(failed.error)
        typer.echo(
            f"{results.num_errors} of {len(results)} trials failed. Traceback: "
            f"{failed.path}/error.txt\n{reason}",
            err=True,
        )
        return 1
    if not all((r.metrics or {}).get("done") for r in results):
        return _interrupted(results, interruption)
    alarms = {stopped_by(r) or "" for r in results}
    if alarms and all(alarms):
        typer.echo(
            f"Stopped by alarm {', '.join(sorted(alarms))}; docs/alarms.md explains "
            "it.",
            err=True,
        )
        return 1
    if not as_test:
        return 0
    return _judge(recipe, {Path(r.path).name: _last_values(r) for r in results})


def _interrupted(results: ResultGrid, interruption: Interruption) -> int:
    """Print the saved checkpoints and return the exit status."""
    if interruption.number is None:  # by another signal, e.g. Tune's SIGUSR1
        typer.echo("Interrupted before the end. Use --resume to continue.", err=True)
        return INTERRUPTED
    saved = [r.checkpoint.path for r in results if r.checkpoint is not None]
    kept = f"Saved: {', '.join(saved)}." if saved else "No checkpoint was written yet."
    typer.echo(
        f"{interruption.name}: stopped before the end. {kept} To continue: rllib-llm "
        f"train --resume {shlex.quote(str(results.experiment_path))}",
        err=True,
    )
    return interruption.status


def _judge(recipe: Recipe, values: dict[str, dict[str, Any]]) -> int:
    """Check last values, by trial, against ``expect``; return the exit status."""
    results = judge(recipe.expect, values)
    _print_expectations(results)
    # Without any trial an expectation is not met; a stage may have no expectations.
    is_judged = bool(results) or not recipe.expect
    return 0 if is_judged and all(each.ok for each in results) else 1


def _last_values(result: Result) -> dict[str, Any]:
    """Return the last reported value of every metric of a trial."""
    history = result.metrics_dataframe
    if history is None or history.empty:
        return {}
    return history.ffill().iloc[-1].dropna().to_dict()


def _print_expectations(results: list[ExpectationResult]) -> None:
    if not results:
        return
    rows = [("trial", "metric", "expected", "value", "result")]
    for each in results:
        bounds = ", ".join(f"{k} {b:g}" for k, b in sorted(each.bounds.items()))
        value = "not reported" if each.value is None else f"{each.value:.4g}"
        status = "ok" if each.ok else "FAILED"
        rows.append((each.trial, each.metric, bounds, value, status))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
