"""What driver and Learners add to the transcripts that EnvRunners began.

A note is a JSON string in a metric that is a series; it names its episode by RLlib's
id. ``TranscriptCollector.on_train_result`` writes notes into the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils.metrics import LEARNER_RESULTS

from rllib_llm.data.episode_data import agent_episodes, episode_data

# A key at the top (driver) and below learners/__all_modules__.
ANNOTATIONS = "transcript_annotations"
DIGITS = 4  # significant digits of numbers per token

_PATHS = ((), (LEARNER_RESULTS, ALL_MODULES))


def annotate_rewards(metrics: Any, episodes: Iterable[Any]) -> None:
    """Log what noted episodes earned after the driver's pieces paid."""
    for episode in _annotated(episodes):
        turns = []
        for part in agent_episodes(episode):
            data = episode_data(part)
            for index, reward in enumerate(part.get_rewards()):
                paid = {n: number(p[index]) for n, p in data.reward_parts.items()}
                turn = {"agent": data.agent_index, "index": index}
                turns.append({**turn, "reward": number(reward), "reward_parts": paid})
        note = {"return": number(episode.get_return()), "turns": turns}
        _log(metrics, episode, note)


def annotate_advantages(metrics: Any, episodes: Iterable[Any]) -> None:
    """Log that noted episodes go to the Learner, and with what credit."""
    for episode in _annotated(episodes):
        turns = []
        for part in agent_episodes(episode):
            data = episode_data(part)
            if data.advantage is None:
                continue
            advantages = np.broadcast_to(np.asarray(data.advantage, float), len(part))
            turns += [
                {"agent": data.agent_index, "index": i, "advantage": number(a)}
                for i, a in enumerate(advantages)
            ]
        _log(metrics, episode, {"trained": True, "turns": turns})


def _annotated(episodes: Iterable[Any]) -> Iterator[Any]:
    return (e for e in episodes if episode_data(e).is_annotated)


def _log(metrics: Any, episode: Any, note: dict[str, Any]) -> None:
    text = dumps({"episode": episode.id_, **note})
    metrics.log_value(ANNOTATIONS, text, reduce="item_series")


# Writing them into records -----------------------------------------------------------


def pop_annotations(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the notes out of a result; those of the driver come first."""
    notes = []
    for path in _PATHS:
        level: Any = result
        for key in path:
            level = level.get(key) if isinstance(level, dict) else None
        if isinstance(level, dict):
            notes += parse(level.pop(ANNOTATIONS, None))
    return notes


def write_annotations(
    records: Iterable[dict[str, Any]], notes: Iterable[dict[str, Any]]
) -> None:
    """Complete records of training episodes; notes about other episodes are ignored."""
    by_episode = {record["episode"]: record for record in records}
    for note in notes:
        record = by_episode.get(note["episode"])
        if record is None:
            continue
        turns = {(t["agent_index"], t["index"]): t for t in record["turns"]}
        for key in ("return", "trained"):
            record[key] = note.get(key, record[key])
        for told in note.get("turns", ()):
            turn = turns.get((told.pop("agent"), told.pop("index")))
            if turn is not None:
                turn.update(told)
        for found in note.get("tokens", ()):
            turn = turns.get((found.pop("agent"), found.pop("index")))
            if turn is not None and turn["columns"] is not None:
                turn["columns"].update(_padded(found, len(turn["columns"]["text"])))
        advantages = {turn["advantage"] for turn in record["turns"] if turn["tokens"]}
        record["advantage"] = advantages.pop() if len(advantages) == 1 else None


def _padded(found: dict[str, Any], length: int) -> dict[str, Any]:
    """Fill up columns of turns that were chosen as a whole: one token stands for it."""
    return {
        name: [*values, *[None] * (length - len(values))]
        if isinstance(values, list)
        else values
        for name, values in found.items()
    }


# Small and safe JSON -----------------------------------------------------------------


def parse(value: Any) -> list[dict[str, Any]]:
    """Return what a series of JSON strings in a result says."""
    # RLlib turns a series of one item into the item, and an empty one into NaN or [].
    items: Iterable[Any] = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return []
    return [json.loads(item) for item in items if isinstance(item, str)]


def dumps(record: dict[str, Any]) -> str:
    """Return compact JSON."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def number(value: Any, digits: int = 6) -> float | None:
    """Return a rounded number; None where it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits)


def compact(values: Sequence[float] | np.ndarray) -> list[float | None] | float | None:
    """Round to significant digits; equal numbers of a turn become that one number."""
    rounded = [_short(value) for value in np.asarray(values, np.float64).tolist()]
    if len(rounded) > 1 and len(set(rounded)) == 1:
        return rounded[0]
    return rounded


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
