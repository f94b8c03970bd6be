"""The ``rllib-llm`` command. Importing it loads neither torch nor ray."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli import analysis_commands, commands
from rllib_llm.cli.options import Run, Storage, Verbose
from rllib_llm.cli.session import configure_output
from rllib_llm.errors import RLlibLLMError
from rllib_llm.version import __version__

app = typer.Typer(
    name="rllib-llm",
    help="Train LLM agents by reinforcement learning, with RLlib.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; our own errors end it with their message and status 1."""
    if os.getcwd() not in sys.path:  # modules of one's own, as with python -m
        sys.path.insert(0, os.getcwd())
    try:
        app(args=arguments)
    except RLlibLLMError as error:
        if "--verbose" in (sys.argv[1:] if arguments is None else arguments):
            traceback.print_exception(error)
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rllib-llm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Train LLM agents by reinforcement learning, with RLlib."""


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|FILE] [SECTION.KEY=VALUE]...",
            help="A shipped recipe's name or a YAML file, then overrides of its "
            "settings, e.g. training.lr=2e-5 seed=3.",
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this run. Only 'stop' may change.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, stop.")
    ] = False,
    as_test: Annotated[
        bool,
        typer.Option("--as-test", help="Fail (status 1) unless 'expect' is fulfilled."),
    ] = False,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Train a recipe, or continue a run.

    Examples: rllib-llm train frozen_lake_ppo | rllib-llm train my.yaml
    training.lr=2e-5 seed=3 | rllib-llm train --resume RUN stop.training_iteration=200
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli import train as command

    code = command.train(
        arguments or [],
        resume=resume,
        dry_run=dry_run,
        as_test=as_test,
        storage=storage,
        verbose=verbose,
    )
    raise typer.Exit(code)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="LoRA: the adapter only, not merged.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(help="Which one, if the run has several.")
    ] = None,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Write a run's policy as a Hugging Face folder, and load it back."""
    configure_output(verbose=verbose)
    from rllib_llm.cli import export as command

    command.export(
        run, out, policy=policy, adapter=adapter, storage=storage, verbose=verbose
    )


@app.command()
def view(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: transcripts.html in the run."),
    ] = None,
    most_episodes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Of more, whole iterations are left out evenly.",
        ),
    ] = 5000,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    storage: Storage = None,
) -> None:
    """Write a run's transcripts as one HTML file; it needs no server and no network."""
    configure_output(verbose=False)
    from rllib_llm.cli import view as command

    command.view(run, out, most_episodes=most_episodes, show=show, storage=storage)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="algorithms, envs, examples, pieces or systems; all if missing."
        ),
    ] = None,
) -> None:
    """List algorithms, environments, shipped recipes, pieces and systems."""
    from rllib_llm.cli import listing

    listing.show(kind)


commands.register(app)
analysis_commands.register(app)
