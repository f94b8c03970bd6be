"""The command ``rllib-llm plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Storage


def plot(
    runs: Annotated[list[str], typer.Argument(help="Folders or names of runs.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Result key. Can be given several times, one panel each."),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write (.png, .svg, .pdf).")] = Path(
        "curves.png"
    ),
    storage: Storage = None,
) -> None:
    """Draw learning curves with means and 95 % intervals over seeds.

    Trials that differ only in the seed, in one run or several, form one curve.
    """
    from rllib_llm.cli.implementation import sweep as implementation

    implementation.plot(runs, metrics=metric or [], out=out, storage=storage)
