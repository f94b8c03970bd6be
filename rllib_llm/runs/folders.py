"""Paths of runs, their trials and stages; importing it does not load ray."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from rllib_llm import yaml_io
from rllib_llm.errors import CheckpointError
from rllib_llm.manifest import require_whole
from rllib_llm.runs.checkpoints import CHECKPOINT_FILE, newest_whole

RECIPE_FILE = "recipe.yaml"


@dataclasses.dataclass(frozen=True)
class RunPaths:
    """Paths of a checkpoint and its run.

    Attributes:
        run: The run folder (with ``recipe.yaml``), or None.
        trial: The trial folder, or None.
        checkpoint: The newest complete checkpoint.
    """

    run: Path | None
    trial: Path | None
    checkpoint: Path


def default_storage() -> Path:
    """Return ``RLLIB_LLM_RESULTS``, or ``~/rllib_llm_results`` if it is not set."""
    folder = os.environ.get("RLLIB_LLM_RESULTS", "~/rllib_llm_results")
    return Path(folder).expanduser()


def find_run(given: str | Path, storage: Path) -> Path:
    """Return the folder of a run given by a path or by a name in ``storage``.

    Raises:
        CheckpointError: There is no such folder.
    """
    path = Path(given).expanduser()
    for candidate in (path, storage / path):
        if candidate.is_dir():
            return candidate.resolve()
    names = sorted(p.parent.name for p in storage.glob(f"*/{RECIPE_FILE}"))
    listed = f" Runs in {storage}: {', '.join(names[-5:])}." if names else ""
    raise CheckpointError(
        f"The run {str(given)!r} does not exist. Give a run, trial or checkpoint "
        f"folder, or the name of a run in {storage}.{listed}"
    )


def run_folder(path: Path) -> Path:
    """Return the run folder of ``path``; for a stage, that of the whole run.

    Raises:
        CheckpointError: Neither ``path`` nor its parents have a ``recipe.yaml``.
    """
    for folder in (path, *path.parents[:2]):
        if (folder / RECIPE_FILE).is_file():
            return folder.parent if stage_folders(folder.parent) else folder
    raise CheckpointError(
        f"{path} is not part of a run: neither it nor its parents contain "
        f"{RECIPE_FILE}. Give a folder written by 'rllib-llm train'."
    )


def locate_checkpoint(path: Path) -> RunPaths:
    """Return the newest whole checkpoint in a run, trial or checkpoint folder.

    The newest has the highest number. For a staged run it is that of the last stage
    with a checkpoint; among trials with equal numbers, that of the last by name.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    checkpoint: Path | None = path
    if (path / CHECKPOINT_FILE).is_file():
        require_whole(path)
    else:
        stages = reversed(stage_folders(path))
        newest = (newest_whole(f.rglob("checkpoint_*")) for f in [*stages, path])
        checkpoint = next((c for c in newest if c is not None), None)
    if checkpoint is None:
        raise CheckpointError(
            f"{path} does not contain a complete checkpoint. Runs write one every "
            "tune.checkpoint_frequency iterations and at the end."
        )
    run = checkpoint.parent.parent
    has_run = (run / RECIPE_FILE).is_file()
    return RunPaths(
        run if has_run else None, checkpoint.parent if has_run else None, checkpoint
    )


def stage_folders(run: Path) -> list[Path]:
    """Return the folders of a run's stages in their order, [] without stages."""
    recipe = stored_recipe(run) if (run / RECIPE_FILE).is_file() else {}
    names = [stage["name"] for stage in recipe.get("stages", ())]
    return [run / stage_folder(i, name) for i, name in enumerate(names)]


def stage_folder(index: int, name: str) -> str:
    """Return the name of a stage's folder, e.g. ``1_sft`` for the first."""
    return f"{index + 1}_{name}"


def stored_recipe(run: Path) -> dict[str, Any]:
    """Return the recipe in a run folder."""
    return yaml_io.read(run / RECIPE_FILE)


def differing_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the dotted keys in which two resolved recipes differ."""
    a, b = flat_recipe(old), flat_recipe(new)
    return sorted(k for k in {*a, *b} if a.get(k, _ABSENT) != b.get(k, _ABSENT))


_ABSENT = object()


def flat_recipe(data: object, prefix: str = "") -> dict[str, Any]:
    """Return the values of a resolved recipe by dotted keys."""
    if not isinstance(data, dict) or not data:
        return {prefix: data}
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= flat_recipe(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
