"""The command ``rllib-llm list``."""

from __future__ import annotations

from typing import Annotated

import typer


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="algorithms, envs, examples or components. Default: all of them."
        ),
    ] = None,
) -> None:
    """List algorithms, environments, shipped recipes and components."""
    from rllib_llm.cli.implementation import listing

    listing.show(kind)
