"""``rllib-llm view``: a run's transcripts as one HTML file."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import typer

from rllib_llm.runs.folders import default_storage, find_run
from rllib_llm.transcripts.reader import TRANSCRIPTS_FILE
from rllib_llm.viewer import write_page


def view(
    run: str, out: Path | None, *, most_episodes: int, show: bool, storage: Path | None
) -> None:
    """Write the page, print its path, and open it if ``show``."""
    folder = find_run(run, storage or default_storage())
    file, contents = write_page(folder, out, most_episodes=most_episodes)
    mib = file.stat().st_size / 2**20
    typer.echo(f"{file} ({mib:.1f} MiB): {', '.join(contents['facts'])}")
    if show:
        webbrowser.open(file.resolve().as_uri())


def write_view(run: Path) -> None:
    """Write the page of a finished run if it has transcripts, and print its path."""
    if any(run.rglob(TRANSCRIPTS_FILE)):
        typer.echo(f"view:        {write_page(run)[0]}")
