"""The command ``rllib-llm train``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.options import Storage, Verbose
from rllib_llm.cli.session import configure_output


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|FILE] [SECTION.KEY=VALUE]...",
            help="Name of a shipped recipe or a YAML file, then overrides of its "
            "settings, e.g. training.lr=2e-5 seed=3.",
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Resume this run. Only 'stop' may change.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the recipe and print the plan only."),
    ] = False,
    as_test: Annotated[
        bool,
        typer.Option("--as-test", help="Exit with status 1 unless 'expect' is met."),
    ] = False,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Train a recipe, or resume a run.

    Examples: rllib-llm train frozen_lake_ppo | rllib-llm train my.yaml
    training.lr=2e-5 seed=3 | rllib-llm train --resume RUN stop.training_iteration=200
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import train as implementation

    code = implementation.train(
        arguments or [],
        resume=resume,
        dry_run=dry_run,
        as_test=as_test,
        storage=storage,
        verbose=verbose,
    )
    raise typer.Exit(code)
