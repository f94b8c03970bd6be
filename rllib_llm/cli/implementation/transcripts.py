"""``rllib-llm transcripts export``: a run's saved episodes as one data file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from rllib_llm.algorithms.driver.saved_episodes import EPISODES_FOLDER
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.envs.dataset.row_files import numbered_lines
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.episode_rows import StoredEpisode
from rllib_llm.offline.export_rows import (
    FORMS,
    MESSAGES,
    PREFERENCES,
    SUFFIXES,
    as_messages,
    as_preferences,
    write_rows,
)
from rllib_llm.runs.folders import default_storage, find_run


def export(
    run: str,
    out: Path,
    *,
    form: str,
    solved: bool,
    min_return: float | None,
    storage: Path | None,
) -> None:
    """Write the saved episodes of ``run`` into ``out``.

    Args:
        run: Folder or name of a run, or a folder of saved episodes.
        out: File to write.
        form: One of ``FORMS``.
        solved: Leave out episodes that did not solve their task.
        min_return: Smallest return; None: any.
        storage: Parent of run folders.

    Raises:
        ConfigError: ``out`` exists or has an unknown format, or there are no episodes.
    """
    if form not in FORMS:
        raise ConfigError(f"--as {form} must be one of {', '.join(FORMS)}.")
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"{out}: the name must end with {' or '.join(SUFFIXES)}.")
    if out.exists():
        raise ConfigError(
            f"{out} exists, and export does not overwrite. Give a new file."
        )
    files = saved_files(find_run(run, storage or default_storage()))
    kept = (
        (row, episode)
        for row, episode in _episodes(files)
        if (episode.is_solved or not solved)
        and (min_return is None or episode.episode_return >= min_return)
    )
    count = write_rows(out, _rows(kept, form))
    if not count:
        out.unlink()
        raise ConfigError(
            f"None of the saved episodes in {files[0].parent} gives a row. Leave out "
            "--solved or --min-return; preferences need two episodes of a task with "
            "different returns."
        )
    typer.echo(f"{out}: {count:,} rows ({form})")


def saved_files(run: Path) -> list[Path]:
    """Return the files of saved episodes of a run and its stages.

    Raises:
        ConfigError: There are none.
    """
    folders = [run / EPISODES_FOLDER, *sorted(run.glob(f"*/{EPISODES_FOLDER}"))]
    if run.name == EPISODES_FOLDER:
        folders = [run]
    files = [file for folder in folders for file in sorted(folder.glob("*.jsonl"))]
    if not files:
        raise ConfigError(
            f"{run} has no saved episodes. Train with rollouts.save_episodes=true; "
            "transcripts.jsonl has a few shortened ones, without tokens."
        )
    return files


def _episodes(files: Iterable[Path]) -> Iterator[tuple[dict[str, Any], StoredEpisode]]:
    for file in files:
        for number, _, line in numbered_lines(file):
            try:
                episode = parse_row(line)
            except RowError as error:
                raise ConfigError(f"{file}, line {number}: {error}") from error
            if isinstance(episode, StoredEpisode):
                yield json.loads(line), episode


def _rows(
    episodes: Iterable[tuple[dict[str, Any], StoredEpisode]], form: str
) -> Iterator[dict[str, Any]]:
    if form == MESSAGES:
        for _, episode in episodes:
            yield from as_messages(episode)
    elif form == PREFERENCES:
        yield from as_preferences([episode for _, episode in episodes])
    else:
        for row, _ in episodes:
            yield row
