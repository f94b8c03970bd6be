"""The command ``rllib-llm play``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.options import Storage
from rllib_llm.cli.session import configure_output


def play(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV[:KEY=VALUE,...]",
            help="Registered name, Gymnasium id or package.module:Name, with options, "
            "or a recipe (.yaml), whose environments take turns.",
        ),
    ],
    run: Annotated[
        str | None,
        typer.Argument(help="Run whose policies play. Default: you play."),
    ] = None,
    player: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT=PLAYER",
            help="Player of an agent: person, expert, random, policy, or the name of a "
            "policy of the run.",
        ),
    ] = None,
    task: Annotated[
        int, typer.Option(min=0, help="Index of the first held-out task.")
    ] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 1,
    sample: Annotated[
        int, typer.Option(min=0, help="Index of the policy's sample of each task.")
    ] = 0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Policies choose the most likely tokens.")
    ] = False,
    storage: Storage = None,
) -> None:
    """Play an environment yourself, or watch a run's policies.

    Tasks and samples have the same indices as in rllib-llm evaluate.
    """
    configure_output(verbose=False)
    from rllib_llm.cli.implementation import play as implementation

    code = implementation.play(
        env,
        run,
        agents=player or [],
        task=task,
        episodes=episodes,
        sample=sample,
        greedy=greedy,
        storage=storage,
    )
    raise typer.Exit(code)
