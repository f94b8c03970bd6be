"""The command group ``rllib-llm transcripts``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Run, Storage

app = typer.Typer(help="Episodes that a run has saved.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep the name of a group's only command."""


@app.command()
def export(
    run: Run,
    out: Annotated[
        Path,
        typer.Argument(help="File to write, .jsonl or .parquet. It must not exist."),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--as",
            help="episodes: texts and tokens. messages: conversations in chat format. "
            "preferences: prompt, chosen and rejected, by the returns of a task's "
            "episodes.",
        ),
    ] = "episodes",
    solved: Annotated[
        bool, typer.Option("--solved", help="Only episodes that solved their task.")
    ] = False,
    min_return: Annotated[
        float | None, typer.Option(help="Only episodes with at least this return.")
    ] = None,
    storage: Storage = None,
) -> None:
    """Write the episodes that a run saved (rollouts.save_episodes) into one file."""
    from rllib_llm.cli.implementation import transcripts as implementation

    implementation.export(
        run, out, form=form, solved=solved, min_return=min_return, storage=storage
    )
