"""The command ``rllib-llm evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Storage, Verbose
from rllib_llm.cli.session import configure_output


def evaluate(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run, trial or checkpoint folder, or a run's name; none with --api."
        ),
    ] = None,
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
    api: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Instead of a run, play with a model behind an OpenAI-compatible API.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --api: the model's name there.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, help="With --api --sampled: the temperature.")
    ] = 1.0,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="With --api: maximum tokens of a turn.")
    ] = 256,
    concurrency: Annotated[
        int, typer.Option(min=1, help="With --api: episodes at a time.")
    ] = 8,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write JSON with all outcomes to this file.")
    ] = None,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Evaluate a run's newest checkpoint, or a model of an API, on held-out tasks."""
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import evaluate as implementation

    modes = {"greedy": greedy, "sampled": sampled, "both": both}
    given_modes = [name for name, wanted in modes.items() if wanted]
    if api is not None or run is None:
        code = implementation.evaluate_api(
            api,
            model,
            run=run,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            concurrency=concurrency,
            episodes=episodes,
            samples=samples,
            modes=given_modes,
            envs=env or [],
            as_json=json,
            out=out,
        )
        raise typer.Exit(code)
    code = implementation.evaluate(
        run,
        episodes=episodes,
        samples=samples,
        modes=given_modes,
        envs=env or [],
        as_json=json,
        out=out,
        storage=storage,
        verbose=verbose,
    )
    raise typer.Exit(code)
