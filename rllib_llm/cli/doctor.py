"""The command ``rllib-llm doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.options import Storage, Verbose
from rllib_llm.cli.session import configure_output


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|FILE] [SECTION.KEY=VALUE]...",
            help="Recipe to try, as for train. Default: check the machine only.",
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Check every node of the running Ray cluster (RAY_ADDRESS) instead.",
        ),
    ] = False,
    storage: Storage = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,
) -> None:
    """Find problems that would make a run fail or slow.

    Exits with status 1 if a check fails.
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import doctor as implementation

    code = implementation.doctor(
        arguments or [],
        cluster=cluster,
        storage=storage,
        as_json=json,
        verbose=verbose,
    )
    raise typer.Exit(code)
