"""Names and paths of the shipped recipes, and names of runs."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from rllib_llm.errors import ConfigError, did_you_mean, summarize
from rllib_llm.schema import show

# A folder name that is valid on any file system and cannot leave its parent folder.
RUN_NAME = re.compile(r"\w[\w .+=@-]{0,99}")


def check_run_name(name: object) -> None:
    """Raise ConfigError unless ``name`` can name a run's folder."""
    if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"name={show(name, 100)} cannot name a run folder. It must begin with a "
            "letter, digit or '_', have at most 100 characters, and contain no '/'."
        )


def recipes_folder() -> Path:
    """Return the folder of shipped recipes.

    An installed wheel has them as package data in ``rllib_llm/tuned_examples``, a
    checkout in ``tuned_examples`` beside the package.
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / "tuned_examples"
    return inside if inside.is_dir() else package.parent / "tuned_examples"


def shipped_recipes() -> dict[str, Path]:
    """Return the paths of the shipped recipes by name (the stem of the file)."""
    return {p.stem: p for p in sorted(recipes_folder().rglob("*.yaml"))}


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the file of a recipe given by the name of a shipped one or by a path.

    Raises:
        ConfigError: Neither a file nor a shipped recipe matches.
    """
    text = str(name_or_path)
    try:
        path = Path(text).expanduser()
        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # not a valid path
        raise ConfigError(
            f"{text[:100]!r} does not name a recipe: {summarize(error, 100)}. "
            "'rllib-llm list examples' shows the shipped ones."
        ) from error
    shipped = shipped_recipes()
    if text in shipped:
        return shipped[text]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        stem = difflib.get_close_matches(path.stem, shipped, n=1)
        hint = f" A shipped recipe has the name {stem[0]!r}." if stem else ""
        raise ConfigError(f"The recipe file {text!r} does not exist.{hint}")
    raise ConfigError(
        f"Unknown recipe {text!r}. {did_you_mean(text, shipped)} 'rllib-llm list "
        "examples' shows all. You can also give the path of a YAML file."
    )
