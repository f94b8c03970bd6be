"""Commands on what runs found: sweep report, plot, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rllib_llm.cli.options import Storage, Verbose
from rllib_llm.cli.session import configure_output

Picture = Annotated[
    Path | None, typer.Option(help="Draw the curves here (.png, .svg, .pdf).")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    sweep = typer.Typer(help="What a search over settings found.", no_args_is_help=True)
    sweep.command("report")(report)
    app.add_typer(sweep, name="sweep")
    for command in (plot, compare):
        app.command()(command)


def report(
    run: Annotated[str, typer.Argument(help="A run's folder or name.")],
    metric: Annotated[
        str | None,
        typer.Option(help="Result key. Default: the recipe's tune.metric."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="max or min. Default: the recipe's, else max.")
    ] = None,
    plot: Picture = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    storage: Storage = None,
) -> None:
    """Order a sweep's settings and say which ones mattered; seeds are put together.

    Works while the sweep runs.
    """
    from rllib_llm.cli import sweep as command

    command.report(
        run, metric=metric, mode=mode, plot=plot, as_json_=json, storage=storage
    )


def plot(
    runs: Annotated[list[str], typer.Argument(help="Folders or names of runs.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Result key; given several times: a panel each."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The picture to write (.png, .svg, .pdf).")
    ] = Path("curves.png"),
    storage: Storage = None,
) -> None:
    """Draw learning curves: means and 95 % intervals over seeds.

    Trials that differ in nothing but the seed, in one run or several, are one curve.
    """
    from rllib_llm.cli import sweep as command

    command.plot(runs, metrics=metric or [], out=out, storage=storage)


def compare(
    a: Annotated[str, typer.Argument(help="Folder or name of a run or trial.")],
    b: Annotated[str, typer.Argument(help="The other.")],
    episodes: Annotated[
        int,
        typer.Option(min=0, help="Held-out tasks that both play; 0: none are played."),
    ] = 200,
    greedy: Annotated[
        bool,
        typer.Option(
            "--greedy/--sampled", help="Most likely tokens, or as in training."
        ),
    ] = True,
    metric: Annotated[
        str, typer.Option(help="With --plot: the result key.")
    ] = "env_runners/episode_return_mean",
    plot: Picture = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    storage: Storage = None,
    verbose: Verbose = False,
) -> None:
    """Compare two runs: settings, results, and play on the same held-out tasks.

    The newest checkpoints play; McNemar's exact test and a permutation test say whether
    the difference may be chance.
    """
    configure_output(verbose=verbose)
    from rllib_llm.cli import compare as command

    command.compare(
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
