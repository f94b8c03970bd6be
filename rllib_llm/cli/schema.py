"""The command ``rllib-llm schema``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def schema(
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: print it.")
    ] = None,
) -> None:
    """Print the JSON Schema of recipes, for editors that complete and check YAML."""
    from rllib_llm.recipes.json_schema import recipe_schema_text

    text = recipe_schema_text()
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
