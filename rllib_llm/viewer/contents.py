"""Contents of a run's HTML page, read from its folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_llm.callbacks import result_keys
from rllib_llm.errors import ConfigError
from rllib_llm.runs.folders import RECIPE_FILE
from rllib_llm.runs.reading import RESULT_FILE, Row, read_history
from rllib_llm.transcripts.reader import TRANSCRIPTS_FILE, latest, read_transcripts

MOST_EPISODES = 5_000
_MAX_POINTS = 1_000  # of a curve
_MODULE = "<module>"
# Result keys of the curves and their titles; missing ones are omitted.
_CURVES = (
    (result_keys.RETURN, "return"),
    (result_keys.SUCCESS, "success"),
    (result_keys.EVAL_RETURN, "return, evaluation"),
    (result_keys.EVAL_SUCCESS, "success, evaluation"),
    (f"learners/{_MODULE}/{result_keys.ENTROPY}", "entropy"),
    (f"learners/{_MODULE}/{result_keys.KL}", "KL to the sampler (k3)"),
    (f"learners/{_MODULE}/{result_keys.CLIP}", "clipped tokens"),
    (f"learners/{_MODULE}/advantage_abs_mean", "|advantage|"),
    (
        f"learners/{_MODULE}/{result_keys.TRAIN_INFERENCE_MISMATCH}",
        "train-inference mismatch",
    ),
    (result_keys.TURNS, "turns"),
    (result_keys.TOKENS_PER_TURN, "tokens per turn"),
    (result_keys.INVALID, "invalid actions"),
)


def read_contents(
    run: Path, beside: Path, *, most_episodes: int = MOST_EPISODES
) -> dict[str, Any]:
    """Return the contents of a run's page.

    Args:
        run: A run folder, or a trial folder.
        beside: The folder of the page; its links are relative to that.
        most_episodes: Maximum number of episodes; if there are more, whole iterations
            are dropped evenly and the page says so.

    Raises:
        ConfigError: The run does not have transcripts.
    """
    files = sorted(run.rglob(TRANSCRIPTS_FILE))
    if not files:
        raise ConfigError(
            f"There is no {TRANSCRIPTS_FILE} below {run}. Runs write it in their first "
            "iteration, unless TranscriptCollector.per_iteration is 0 or they run SFT."
        )
    trials, episodes = [], []
    for number, file in enumerate(files):
        name = file.parent.relative_to(run).as_posix()
        trials.append({"name": run.name if name == "." else name})
        records = latest(read_transcripts(file))
        episodes += [{**record, "trial": number} for record in records]
    shown = _thinned(episodes, most_episodes)
    recipe = _recipe_of(run)
    return {
        "name": run.name,
        "facts": _facts(trials, episodes, shown),
        "trials": trials,
        "links": list(_links(run, beside, files, recipe)),
        "config": recipe.read_text(encoding="utf-8") if recipe else "",
        "curves": _curves([file.with_name(RESULT_FILE) for file in files], trials),
        "episodes": shown,
    }


def _recipe_of(run: Path) -> Path | None:
    # A trial's recipe is in the run folder above it.
    candidates = [f / RECIPE_FILE for f in (run, *run.parents[:2])]
    return next((file for file in candidates if file.is_file()), None)


def _thinned(episodes: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return the episodes of evenly spaced iterations, ``limit`` if possible."""
    iterations = sorted({e["iteration"] or 0 for e in episodes})
    every = 1
    shown = episodes
    while len(shown) > limit and every < len(iterations):
        every += 1
        # Count from the end: the last iteration, the result of the run, is always kept.
        kept = set(iterations[::-1][::every])
        shown = [e for e in episodes if (e["iteration"] or 0) in kept]
    return shown


def _facts(
    trials: list[Any], episodes: list[dict[str, Any]], shown: list[dict[str, Any]]
) -> list[str]:
    iterations = {e["iteration"] for e in episodes}
    turns = sum(len(e["turns"]) for e in shown)
    facts = [f"{len(trials)} trials"] if len(trials) > 1 else []
    facts += [f"{len(iterations)} iterations", f"{len(shown)} episodes kept"]
    facts.append(f"{turns} turns")
    if len(shown) < len(episodes):
        left = len({e["iteration"] for e in shown})
        facts.append(f"only {left} iterations of {len(iterations)} are on this page")
    return facts


def _links(
    run: Path, beside: Path, files: list[Path], recipe: Path | None
) -> Iterator[tuple[str, str]]:
    linked = [recipe, *files[:8], *(f.with_name(RESULT_FILE) for f in files[:8])]
    for file in linked:
        if file is not None and file.is_file():
            title = os.path.relpath(file, run)
            yield Path(title).as_posix(), Path(os.path.relpath(file, beside)).as_posix()


def _curves(files: list[Path], trials: list[Any]) -> list[dict[str, Any]]:
    histories = [read_history(file) for file in files]
    curves = []
    for key, title in _CURVES:
        lines = []
        for trial, history in zip(trials, histories, strict=True):
            points = _points(history, key)
            if points:
                lines.append({"trial": trial["name"], "points": points})
        if lines:
            curves.append({"key": key, "title": title, "lines": lines})
    return curves


def _points(history: list[Row], key: str) -> list[tuple[int, float]]:
    """Return iterations and values; for keys of policies, the mean over policies."""
    before, _, name = key.rpartition(f"{_MODULE}/")
    points = []
    for row in history:
        values = [
            value
            for k, value in row.items()
            if k.startswith(before) and k.endswith(name) and _matches(k, before, name)
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        if values:
            mean = sum(values) / len(values)
            points.append((int(row[result_keys.ITERATION]), float(f"{mean:.4g}")))
    stride = math.ceil(len(points) / _MAX_POINTS) or 1
    return points[::-1][::stride][::-1]


def _matches(key: str, before: str, name: str) -> bool:
    """Return True if ``key`` is ``<before><module>/<name>``, or ``name`` itself."""
    if not before:
        return key == name
    module = key.removeprefix(before).removesuffix(f"/{name}")
    return "/" not in module and module != result_keys.ALL_MODULES
