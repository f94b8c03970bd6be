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
    license: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Licence of the weights in the model card: apache-2.0."
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Also upload the folder to this repository of the Hugging Face hub.",
        ),
    ] = None,
    private: Annotated[
        bool,
        typer.Option("--private", help="With --push: a new repository is private."),
    ] = False,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Export a run's policy as a Hugging Face folder with a model card; verify it."""
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import export as implementation

    implementation.export(
        run,
        out,
        policy=policy,
        adapter=adapter,
        license=license,
        push=push,
        private=private,
        storage=storage,
        verbose=verbose,
    )
