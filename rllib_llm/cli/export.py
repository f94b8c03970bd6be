"""The command ``rllib-llm export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Run, Storage, Verbose
from rllib_llm.cli.session import configure_output


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="Folder to write. It must not exist.")],
    adapter: Annotated[
        bool,
        typer.Option(
            "--adapter", help="With LoRA: write the adapter only, not merged."
        ),
    ] = False,
    policy: Annotated[
        str | None, typer.Option(help="Policy to export, if the run has several.")
    ] = None,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Export a run's policy as a Hugging Face folder, and verify it."""
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import export as implementation

    implementation.export(
        run, out, policy=policy, adapter=adapter, storage=storage, verbose=verbose
    )
