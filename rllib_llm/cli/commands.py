"""Commands beside training: evaluate, play, init, doctor, check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Run, Storage, Verbose
from rllib_llm.cli.session import configure_output


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (evaluate, play, init, check, doctor):
        app.command()(command)


def evaluate(
    run: Run,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="Another environment than the run's, with its options; may be given "
            "several times.",
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option(min=1, help="Held-out tasks, the same ones every time.")
    ] = 200,
    samples: Annotated[
        int, typer.Option(min=1, help="How often to play each task, for pass@k.")
    ] = 1,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Most likely tokens (the default).")
    ] = False,
    sampled: Annotated[
        bool,
        typer.Option("--sampled", help="As in training (default if --samples > 1)."),
    ] = False,
    both: Annotated[bool, typer.Option("--both", help="One after the other.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write JSON with every outcome to this file.")
    ] = None,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Evaluate a run's newest checkpoint on held-out tasks."""
    configure_output(verbose=verbose)
    from rllib_llm.cli import evaluate as command

    modes = {"greedy": greedy, "sampled": sampled, "both": both}
    code = command.evaluate(
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


def play(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV[:KEY=VALUE,...]",
            help="Registered name, Gymnasium id, or package.module:Name, with options.",
        ),
    ],
    run: Annotated[
        str | None,
        typer.Argument(help="Whose policies play; without it you do."),
    ] = None,
    player: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT=PLAYER",
            help="Who plays an agent: person, expert, random, policy, or the name of "
            "one of the run's policies.",
        ),
    ] = None,
    task: Annotated[
        int, typer.Option(min=0, help="Number of the first held-out task.")
    ] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="How many tasks.")] = 1,
    sample: Annotated[
        int, typer.Option(min=0, help="Which sample of the task a policy plays.")
    ] = 0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Policies take the most likely tokens.")
    ] = False,
    storage: Storage = None,
) -> None:
    """Play an environment yourself, or watch a run's policies.

    Tasks and samples are those of rllib-llm evaluate.
    """
    configure_output(verbose=False)
    from rllib_llm.cli import play as command

    code = command.play(
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


def init(
    kind: Annotated[str, typer.Argument(help="env, reward or algorithm.")],
    name: Annotated[str, typer.Argument(help="In snake_case, e.g. my_game.")],
    folder: Annotated[Path, typer.Option("--dir", help="Folder to write into.")] = Path(
        "."
    ),
) -> None:
    """Write a small environment, reward or algorithm with its test and recipe."""
    from rllib_llm.cli import init as command

    command.init(kind, name, folder)


def check(
    env: Annotated[
        str,
        typer.Argument(help="Registered name, Gymnasium id, or package.module:Name."),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="env_config, e.g. size=5."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Check with this model's tokenizer and chat template too."),
    ] = None,
    max_context_tokens: Annotated[
        int | None, typer.Option(help="With --model: the longest conversation.")
    ] = None,
    env_processes: Annotated[
        bool,
        typer.Option(
            "--env-processes", help="As it is with rollouts(env_processes=True)."
        ),
    ] = False,
) -> None:
    """Play an environment and report what would break training."""
    configure_output(verbose=False)
    from rllib_llm.cli import check as command

    ok = command.check(
        env, options or [], model, max_context_tokens, env_processes=env_processes
    )
    raise typer.Exit(0 if ok else 1)


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|FILE] [SECTION.KEY=VALUE]...",
            help="A recipe to try out, as for train; without one the machine alone.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,
) -> None:
    """Look for what would make a run fail or crawl.

    Ends with status 1 if something fails.
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli import doctor as command

    code = command.doctor(arguments or [], as_json=json, verbose=verbose)
    raise typer.Exit(code)
