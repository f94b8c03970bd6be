"""The command ``rllib-llm view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Run, Storage
from rllib_llm.cli.session import configure_output


def view(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default: transcripts.html in the run folder."
        ),
    ] = None,
    most_episodes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of episodes. If there are more, iterations are "
            "dropped evenly.",
        ),
    ] = 5000,
    show: Annotated[
        bool, typer.Option("--open", help="Open the file in a browser.")
    ] = False,
    storage: Storage = None,
) -> None:
    """Write a run's transcripts as one self-contained HTML file."""
    configure_output(verbose=False)
    from rllib_llm.cli.implementation import view as implementation

    implementation.view(
        run, out, most_episodes=most_episodes, show=show, storage=storage
    )
