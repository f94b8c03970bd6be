"""The command ``rllib-llm init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    kind: Annotated[str, typer.Argument(help="env, reward or algorithm.")],
    name: Annotated[str, typer.Argument(help="Name in snake_case, e.g. my_game.")],
    folder: Annotated[Path, typer.Option("--dir", help="Folder to write into.")] = Path(
        "."
    ),
) -> None:
    """Create a small environment, reward or algorithm with a test and a recipe."""
    from rllib_llm.cli.implementation import init as implementation

    implementation.init(kind, name, folder)
