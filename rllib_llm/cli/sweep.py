"""The command group ``rllib-llm sweep``."""

from __future__ import annotations

from typing import Annotated

import typer

from rllib_llm.cli.options import Picture, Storage

app = typer.Typer(help="Results of a search over settings.", no_args_is_help=True)


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="Folder or name of a run.")],
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
    """Rank a sweep's settings and estimate their effects, averaging over seeds.

    You can use it while the sweep runs.
    """
    from rllib_llm.cli.implementation import sweep as implementation

    implementation.report(
        run, metric=metric, mode=mode, plot=plot, as_json_=json, storage=storage
    )
