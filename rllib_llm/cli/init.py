"""``rllib-llm init``: files to begin with."""

from __future__ import annotations

from pathlib import Path

import typer

from rllib_llm.templates import write_template


def init(kind: str, name: str, folder: Path) -> None:
    """Write the files and say what to do with them."""
    module, test, recipe = write_template(kind, name, folder)
    for path in (module, test, recipe):
        typer.echo(path)
    words = "".join(part.capitalize() for part in name.split("_"))
    inside = "" if folder.resolve() == Path.cwd() else f"cd {folder}\n  "
    checked = f"rllib-llm check {name}:{words}\n  " if kind == "env" else ""
    typer.echo(
        f"\nNext:\n  {inside}{checked}pytest {test.name}\n"
        f"  rllib-llm train {recipe.name} --dry-run\n  rllib-llm train {recipe.name}"
    )
