"""The command ``rllib-llm evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Storage, Verbose
from rllib_llm.cli.session import configure_output
from rllib_llm.errors import ConfigError

_Run = Annotated[
    str | None,
    typer.Argument(help="A run, trial or checkpoint folder, or a run's name."),
]
_Envs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:KEY=VALUE,...]",
        help="Environment to use instead of the run's, with its options. Can be given "
        "several times.",
    ),
]
_Episodes = Annotated[
    int, typer.Option(min=1, help="Number of held-out tasks; always the same ones.")
]
_Samples = Annotated[int, typer.Option(min=1, help="Rollouts per task, for pass@k.")]
_Greedy = Annotated[
    bool, typer.Option("--greedy", help="Most likely tokens (default).")
]
_Sampled = Annotated[
    bool,
    typer.Option(
        "--sampled", help="Sampled as in training (default if --samples > 1)."
    ),
]
_Both = Annotated[bool, typer.Option("--both", help="Both greedy and sampled.")]
_Api = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Play with a model behind an OpenAI-compatible API: alone, or beside RUN "
        "on the same tasks.",
    ),
]
_Model = Annotated[str | None, typer.Option(help="With --api: the model's name there.")]
_Temperature = Annotated[
    float | None,
    typer.Option(min=0, help="With --api --sampled: the temperature. Default: 1."),
]
_MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, help="With --api: maximum tokens of a turn. Default: 256."),
]
_Concurrency = Annotated[
    int | None,
    typer.Option(min=1, help="With --api: episodes at a time. Default: 8."),
]
_Pairs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Of a reward model: files with preference pairs that were not trained "
        "on. Default: those of data.held_out, or episodes of held-out tasks.",
    ),
]
_Search = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[:KEY=VALUE,...]",
        help="Search for each task: best_of[:n=8] episodes, best_turn[:n=8] replies at "
        "each turn, beam[:width=4,expand=4], or mcts[:simulations=32,width=4,"
        "rule=uct|puct,exploration=1.0,gamma=1.0,backup=mean|max,"
        "evaluate=rollout|critic|scorer], beside plain sampling with the same tokens. "
        "Can be given several times.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Out = Annotated[
    Path | None, typer.Option(help="Write JSON with all outcomes to this file.")
]


def evaluate(
    run: _Run = None,
    env: _Envs = None,
    episodes: _Episodes = 200,
    samples: _Samples = 1,
    greedy: _Greedy = False,
    sampled: _Sampled = False,
    both: _Both = False,
    api: _Api = None,
    model: _Model = None,
    temperature: _Temperature = None,
    max_new_tokens: _MaxNewTokens = None,
    concurrency: _Concurrency = None,
    pairs: _Pairs = None,
    search: _Search = None,
    json: _Json = False,
    out: _Out = None,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Evaluate a run's newest checkpoint, or a model of an API, on held-out tasks.

    Of a RewardModel run: accuracy and calibration of its scores on preference pairs.
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli.implementation import evaluate as implementation

    modes = {"greedy": greedy, "sampled": sampled, "both": both}
    given_modes = [name for name, wanted in modes.items() if wanted]
    if api is None:
        limits = {"max-new-tokens": max_new_tokens, "concurrency": concurrency}
        _refuse_without_api({"model": model, "temperature": temperature, **limits})
    if pairs and api is not None:
        raise ConfigError("--pairs has no effect with --api. Remove one of them.")
    if search:
        _refuse_beside_search({"api": api, "pairs": pairs, "samples": samples > 1})
        _refuse_beside_search(modes)
        from rllib_llm.cli.implementation.search import evaluate as evaluate_search

        code = evaluate_search(
            run,
            search,
            episodes,
            envs=env or [],
            as_json=json,
            out=out,
            storage=storage,
        )
        raise typer.Exit(code)
    if api is not None or run is None:
        code = implementation.evaluate_api(
            api,
            model,
            run=run,
            temperature=1.0 if temperature is None else temperature,
            max_new_tokens=max_new_tokens or 256,
            concurrency=concurrency or 8,
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
    code = implementation.evaluate(
        run,
        episodes=episodes,
        samples=samples,
        modes=given_modes,
        envs=env or [],
        pairs=pairs or [],
        as_json=json,
        out=out,
        storage=storage,
        verbose=verbose,
    )
    raise typer.Exit(code)


def _refuse_without_api(options: Mapping[str, object]) -> None:
    """Refuse options of the command that have no effect without ``--api``."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} has no effect without --api. Remove it.")


def _refuse_beside_search(options: Mapping[str, object]) -> None:
    """Refuse options of the command that have no effect with ``--search``."""
    for name, value in options.items():
        if value:
            raise ConfigError(
                f"--{name} has no effect with --search, which samples as in training. "
                "Remove one of them."
            )
