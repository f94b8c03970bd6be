"""``rllib-llm init``: files of a new project from templates."""

from __future__ import annotations

from pathlib import Path

import typer

from rllib_llm.templates import write_template


def init(kind: str, name: str, folder: Path) -> None:
    """Write the files and print the next commands."""
    module, test, recipe = write_template(kind, name, folder)
    for path in (module, test, recipe):
        typer.echo(path)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    change_folder = "" if folder.resolve() == Path.cwd() else f"cd {folder}\n  "
    checked = f"rllib-llm check {name}:{class_name}\n  " if kind == "env" else ""
    typer.echo(
        f"\nNext:\n  {change_folder}{checked}pytest {test.name}\n"
        f"  rllib-llm train {recipe.name} --dry-run\n  rllib-llm train {recipe.name}"
    )
