"""Small notes from the processes of a run to whoever watches it.

They go through the key-value store of Ray's control service, which every process of a
cluster can reach: no actor, no file system in common. Nothing is written unless a
watcher has said that it is there, and a note replaces the one before it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from ray.tune.result import TRIAL_INFO

from rllib_llm import compat

_PREFIX = "rllib_llm/live/"
_WATCHERS = _PREFIX + "watchers/"
_NOTES = _PREFIX + "notes/"
ALGORITHM = "algorithm"


class Publisher:
    """Writes the notes of one process; without a topic it writes none.

    Args:
        topic: What the processes of a trial have in common; see :func:`new_topic`.
        who: The process.
    """

    def __init__(self, topic: str | None, who: str) -> None:
        self._key = f"{_NOTES}{topic}/{who}" if topic is not None else None

    @property
    def is_read(self) -> bool:
        """Whether anyone was watching when the trial began."""
        return self._key is not None

    def write(self, **note: Any) -> None:
        """Replace the note; ``at`` is added, in seconds since the epoch."""
        if self._key is not None:
            compat.ray_kv_put(self._key, json.dumps({"at": time.time(), **note}))


def new_topic(trial_id: str) -> str | None:
    """Return a topic for a trial, None if nobody watches."""
    if not compat.ray_kv_keys(_WATCHERS):
        return None
    return f"{trial_id}.{uuid.uuid4().hex}"


def trial_of(config: Any) -> str:
    """Return the id of the Tune trial that a config was made for, if it was for one.

    RLlib drops what Tune says of the trial when it makes its config object of it.
    """
    info = config.get(TRIAL_INFO) if isinstance(config, dict) else None
    return info.trial_id if info is not None else "none"


def forget(topic: str | None) -> None:
    """Delete all notes of a topic."""
    if topic is not None:
        compat.ray_kv_delete(f"{_NOTES}{topic}/")


class Watcher:
    """Reads the notes of all trials; opened before they begin."""

    def __init__(self) -> None:
        self._key = _WATCHERS + uuid.uuid4().hex
        compat.ray_kv_put(self._key, "")

    def read(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield trial, process and note, in the order of their keys."""
        for key in sorted(compat.ray_kv_keys(_NOTES)):
            value = compat.ray_kv_get(key)
            if value is not None:  # deleted meanwhile
                topic, _, who = key.removeprefix(_NOTES).partition("/")
                yield topic.partition(".")[0], who, json.loads(value)

    def close(self) -> None:
        """Say that nobody watches any more."""
        compat.ray_kv_delete(self._key)
