"""Small sets of files to begin with: a module, its test, a recipe."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from rllib_llm.errors import ConfigError, did_you_mean

KINDS = ("env", "reward", "algorithm")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def write_template(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the files of a new environment, reward or algorithm.

    Args:
        kind: ``"env"``, ``"reward"`` or ``"algorithm"``.
        name: What it is called, in snake_case; the module's name.
        folder: Where to; it is made if it is not there.

    Returns:
        The files: module, test, recipe.

    Raises:
        ConfigError: If the kind or name will not do, or a file is there already.
    """
    if kind not in KINDS:
        raise ConfigError(f"There is no scaffold {kind!r}. {did_you_mean(kind, KINDS)}")
    _check_name(name)
    words = {
        "name": name,
        "Class": "".join(part.capitalize() for part in name.split("_")),
    }
    texts = {
        folder / target: _template(f"{kind}{source}").substitute(words)
        for source, target in (
            (".py.txt", f"{name}.py"),
            ("_test.py.txt", f"test_{name}.py"),
            (".yaml.txt", f"{name}.yaml"),
        )
    }
    for path in texts:
        if path.exists():
            raise ConfigError(
                f"{path} exists. Choose another name or --dir, so that nothing is lost."
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _template(file: str) -> Template:
    source = files("rllib_llm.templates") / file
    return Template(source.read_text(encoding="utf-8"))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            f"The name {name!r} must be a Python module's: lower-case letters, digits "
            "and _, a letter first, no keyword, e.g. my_game."
        )
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"The name {name!r} is taken: Python already finds a module of that name, "
            "and one would hide the other. Choose another, e.g. "
            f"my_{name}."
        )
