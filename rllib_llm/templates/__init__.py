"""Templates of new environments, rewards and algorithms with a test and a recipe."""

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
        name: Name of the module, in snake_case.
        folder: Folder for the files; created if it does not exist.

    Returns:
        The files: module, test, recipe.

    Raises:
        ConfigError: The kind or name is invalid, or a file exists.
    """
    if kind not in KINDS:
        raise ConfigError(f"Unknown template {kind!r}. {did_you_mean(kind, KINDS)}")
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
                f"{path} exists, and init does not overwrite. Use another name or "
                "--dir."
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
            f"The name {name!r} must be a valid module name in snake_case: lower-case "
            "letters, digits and _, beginning with a letter, and not a Python keyword, "
            "e.g. my_game."
        )
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"The name {name!r} is taken: a module with this name is already "
            "importable "
            f"and one would hide the other. Use another name, e.g. my_{name}."
        )
