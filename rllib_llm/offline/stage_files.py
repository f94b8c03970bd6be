"""Data files that an earlier stage of a recipe writes: ``stage:NAME``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rllib_llm.errors import ConfigError, did_you_mean

PREFIX = "stage:"


def paths_by_entry(
    files: str | Sequence[str], folders: Mapping[str, str | None]
) -> list[list[str]] | None:
    """Return the paths of each entry, with files in place of ``stage:NAME``.

    Args:
        files: Paths, patterns and stages.
        folders: Folder of the episodes that each earlier stage saves; None as long as
            it has not run.

    Returns:
        The paths; None if one of the stages has not run yet.

    Raises:
        ConfigError: There is no such stage, or it has saved nothing.
    """
    entries = [files] if isinstance(files, str) else files
    paths = [_paths(given, folders) for given in entries]
    written = [each for each in paths if each is not None]
    return written if len(written) == len(paths) else None


def _paths(given: str, folders: Mapping[str, str | None]) -> list[str] | None:
    name = given.removeprefix(PREFIX)
    if name == given:
        return [given]
    if name not in folders:
        raise ConfigError(
            f"files={given!r}: no earlier stage {name!r} saves episodes. "
            f"{did_you_mean(name, folders)} Set rollouts.save_episodes=true in that "
            "stage."
        )
    folder = folders[name]
    if folder is None:
        return None
    files = sorted(map(str, Path(folder).glob("*.jsonl")))
    if not files:
        raise ConfigError(
            f"files={given!r}: the stage {name!r} saved no episodes in {folder}. None "
            "passed its rollouts.save_where: relax that, or train it longer."
        )
    return files
