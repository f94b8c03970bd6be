"""The command ``rllib-llm check``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.session import configure_output


def check(
    env: Annotated[
        str,
        typer.Argument(
            help="Registered name, Gymnasium id, package.module:Name, data file, "
            "dataset (hf://datasets/OWNER/NAME, or a folder with a slash), or recipe "
            "(.yaml), of which each environment is checked."
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Options (env_config), e.g. size=5."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Also check with the tokenizer and chat template of this model."
        ),
    ] = None,
    max_context_tokens: Annotated[
        int | None, typer.Option(help="With --model: maximum tokens of a conversation.")
    ] = None,
    env_processes: Annotated[
        bool,
        typer.Option(
            "--env-processes", help="Check as with rollouts(env_processes=True)."
        ),
    ] = False,
    fork: Annotated[
        bool,
        typer.Option(
            "--fork",
            help="Also fork episodes at random turns, and compare how they go on "
            "(rollouts.fork).",
        ),
    ] = False,
) -> None:
    """Play an environment, or read a data file, and report what would break training.

    A data file (JSON Lines, Parquet, CSV) is checked line by line: for data.files, if
    its first row has messages, a completion or a preference pair and no option is
    given, else as dataset-v0.
    """
    configure_output(verbose=False)
    from rllib_llm.cli.implementation import check as implementation

    ok = implementation.check(
        env,
        options or [],
        model,
        max_context_tokens,
        env_processes=env_processes,
        forks=fork,
    )
    raise typer.Exit(0 if ok else 1)
