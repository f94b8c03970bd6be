"""The ``rllib-llm`` command line; importing it loads neither torch nor ray."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rllib_llm.cli import sweep, transcripts
from rllib_llm.cli.check import check
from rllib_llm.cli.compare import compare
from rllib_llm.cli.doctor import doctor
from rllib_llm.cli.evaluate import evaluate
from rllib_llm.cli.export import export
from rllib_llm.cli.init import init
from rllib_llm.cli.list import list_
from rllib_llm.cli.play import play
from rllib_llm.cli.plot import plot
from rllib_llm.cli.schema import schema
from rllib_llm.cli.serve import serve, serve_env
from rllib_llm.cli.train import train
from rllib_llm.cli.view import view
from rllib_llm.errors import RLlibLLMError
from rllib_llm.version import __version__

app = typer.Typer(
    name="rllib-llm",
    help="Train LLM agents by reinforcement learning, with RLlib.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Help in plain text: drawing it with rich takes longer than the rest of the start.
    rich_markup_mode=None,
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the package's errors print a message and exit with 1."""
    # A console script, unlike python -m, does not have the working directory on the
    # path, and recipes name modules of the user.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        app(args=arguments)
    except RLlibLLMError as error:
        if "--verbose" in (sys.argv[1:] if arguments is None else arguments):
            traceback.print_exception(error)
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)


def _print_version(is_requested: bool) -> None:
    if is_requested:
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


_command: Callable[..., Any]
# In the order of ``--help``.
for _command in (train, export, serve, view):
    app.command()(_command)
app.command("list")(list_)
for _command in (evaluate, play, init, check, doctor, plot, compare, schema):
    app.command()(_command)
app.command("serve-env")(serve_env)
app.add_typer(sweep.app, name="sweep")
app.add_typer(transcripts.app, name="transcripts")
