"""Annotations that the driver and Learners add to transcripts.

An annotation is a JSON string with the id of its episode, in a metric that is a series.
``TranscriptCollector.on_train_result`` writes annotations into the records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.core import ALL_MODULES
from ray.rllib.utils.metrics import LEARNER_RESULTS

from rllib_llm.data.episode_data import agent_episodes, episode_data

if TYPE_CHECKING:
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    from rllib_llm.types import Episode

# Result key at the top level (driver) and below learners/__all_modules__.
ANNOTATIONS = "transcript_annotations"
DIGITS = 4  # significant digits of numbers per token

_PATHS = ((), (LEARNER_RESULTS, ALL_MODULES))


def annotate_rewards(metrics: MetricsLogger, episodes: Iterable[Any]) -> None:
    """Log the rewards of annotated episodes after the driver's reward functions."""
    for episode in _annotated(episodes):
        turns = []
        for part in agent_episodes(episode):
            data = episode_data(part)
            for index, reward in enumerate(part.get_rewards()):
                parts = {n: number(p[index]) for n, p in data.reward_parts.items()}
                turn = {"agent": data.agent_index, "index": index}
                turns.append({**turn, "reward": number(reward), "reward_parts": parts})
        note = {"return": number(episode.get_return()), "turns": turns}
        _log(metrics, episode, note)


def annotate_advantages(metrics: MetricsLogger, episodes: Iterable[Any]) -> None:
    """Log that annotated episodes are trained on, and their advantages."""
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


def _log(metrics: MetricsLogger, episode: Episode, note: dict[str, Any]) -> None:
    text = dumps({"episode": episode.id_, **note})
    metrics.log_value(ANNOTATIONS, text, reduce="item_series")


# Writing them into records -----------------------------------------------------------


def pop_annotations(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Remove the annotations from a result and return them, the driver's first."""
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
    """Write annotations into the records of their episodes; ignore other episodes."""
    by_episode = {record["episode"]: record for record in records}
    for note in notes:
        record = by_episode.get(note["episode"])
        if record is None:
            continue
        turns = {(t["agent_index"], t["index"]): t for t in record["turns"]}
        for key in ("return", "trained"):
            record[key] = note.get(key, record[key])
        for fields in note.get("turns", ()):
            turn = turns.get((fields.pop("agent"), fields.pop("index")))
            if turn is not None:
                turn.update(fields)
        for token_columns in note.get("tokens", ()):
            agent, index = token_columns.pop("agent"), token_columns.pop("index")
            turn = turns.get((agent, index))
            if turn is not None and turn["columns"] is not None:
                length = len(turn["columns"]["text"])
                turn["columns"].update(_padded(token_columns, length))
        advantages = {turn["advantage"] for turn in record["turns"] if turn["tokens"]}
        record["advantage"] = advantages.pop() if len(advantages) == 1 else None


def _padded(token_columns: dict[str, Any], length: int) -> dict[str, Any]:
    """Pad the columns of scored actions, which have one value for a whole turn."""
    return {
        name: [*values, *[None] * (length - len(values))]
        if isinstance(values, list)
        else values
        for name, values in token_columns.items()
    }


# Small and safe JSON -----------------------------------------------------------------


def parse(value: Any) -> list[dict[str, Any]]:
    """Return the parsed items of a series of JSON strings in a result."""
    # RLlib reports a series of one item as the item, and an empty one as NaN or [].
    items: Iterable[Any] = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return []
    return [json.loads(item) for item in items if isinstance(item, str)]


def dumps(record: dict[str, Any]) -> str:
    """Return compact JSON."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def number(value: Any, digits: int = 6) -> float | None:
    """Return a rounded number; None if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits)


def compact(values: Sequence[float] | np.ndarray) -> list[float | None] | float | None:
    """Return the values rounded to significant digits; one number if all are equal."""
    exact = np.asarray(values, np.float64).tolist()
    # Equal values are the rule, e.g. the advantage of every token of a turn.
    rounded = {value: _short(value) for value in set(exact)}
    if len(exact) > 1 and len(set(rounded.values())) == 1:
        return _short(exact[0])
    return [rounded[value] for value in exact]


def _short(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
