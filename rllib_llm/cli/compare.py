"""The command ``rllib-llm compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.options import Picture, Storage, Verbose
from rllib_llm.cli.session import configure_output


def compare(
    a: Annotated[str, typer.Argument(help="Folder or name of a run or trial.")],
    b: Annotated[str, typer.Argument(help="Folder or name of the other.")],
    episodes: Annotated[
        int,
        typer.Option(min=0, help="Held-out tasks that both play; 0: none."),
    ] = 200,
    greedy: Annotated[
        bool,
        typer.Option(
            "--greedy/--sampled", help="Most likely tokens, or sampled as in training."
        ),
    ] = True,
    metric: Annotated[
        str, typer.Option(help="Result key for --plot.")
    ] = "env_runners/episode_return_mean",
    plot: Picture = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Compare two runs: settings, results, and play on the same held-out tasks.

    The newest checkpoints play. McNemar's exact test and a permutation test estimate
    whether the difference is due to chance.
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import compare as implementation

    implementation.compare(
        a,
        b,
        episodes=episodes,
        greedy=greedy,
        metric=metric,
        plot=plot,
        as_json=json,
        storage=storage,
        verbose=verbose,
    )
