"""The command ``rllib-llm evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Run, Storage, Verbose
from rllib_llm.cli.session import configure_output


def evaluate(
    run: Run,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="Environment to use instead of the run's, with its options. Can be "
            "given several times.",
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=1, help="Number of held-out tasks; always the same ones.")
    ] = 200,
    samples: Annotated[
        int, typer.Option(min=1, help="Rollouts per task, for pass@k.")
    ] = 1,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Most likely tokens (default).")
    ] = False,
    sampled: Annotated[
        bool,
        typer.Option(
            "--sampled", help="Sampled as in training (default if --samples > 1)."
        ),
    ] = False,
    both: Annotated[
        bool, typer.Option("--both", help="Both greedy and sampled.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write JSON with all outcomes to this file.")
    ] = None,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Evaluate the newest checkpoint of a run on held-out tasks."""
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import evaluate as implementation

    modes = {"greedy": greedy, "sampled": sampled, "both": both}
    code = implementation.evaluate(
        run,
        episodes=episodes,
        samples=samples,
        modes=[name for name, wanted in modes.items() if wanted],
        envs=env or [],
        as_json=json,
        out=out,
        storage=storage,
        verbose=verbose,
    )
    raise typer.Exit(code)
