"""Progress notes from the processes of a run to a watcher.

They are stored in the key-value store of Ray's GCS, which every process of a cluster
can reach without an actor or a shared file system. Notes are written only if a watcher
is registered, and each replaces the one before it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ray.tune.result import TRIAL_INFO

from rllib_llm import compat

if TYPE_CHECKING:
    pass

_PREFIX = "rllib_llm/live/"
_WATCHERS = _PREFIX + "watchers/"
_NOTES = _PREFIX + "notes/"
ALGORITHM = "algorithm"


class Publisher:
    """Writes the notes of one process; without a topic it writes nothing.

    Args:
        topic: Topic of the trial, shared by its processes; see :func:`new_topic`.
        who: Name of the process.
    """

    def __init__(self, topic: str | None, who: str) -> None:
        self._key = f"{_NOTES}{topic}/{who}" if topic is not None else None

    @property
    def is_read(self) -> bool:
        """True if a watcher was registered when the trial started."""
        return self._key is not None

    def write(self, **note: Any) -> None:
        """Replace the note; ``at`` is added, in seconds since the epoch."""
        if self._key is not None:
            compat.ray_kv_put(self._key, json.dumps({"at": time.time(), **note}))


def new_topic(trial_id: str) -> str | None:
    """Return a topic for a trial; None without a watcher."""
    if not compat.ray_kv_keys(_WATCHERS):
        return None
    return f"{trial_id}.{uuid.uuid4().hex}"


def trial_of(config: object) -> str:
    """Return the id of the Tune trial in a config dictionary, else ``"none"``.

    Read it from the dictionary: RLlib's config object drops Tune's trial information.
    """
    info = config.get(TRIAL_INFO) if isinstance(config, dict) else None
    return info.trial_id if info is not None else "none"


def forget(topic: str | None) -> None:
    """Delete all notes of a topic."""
    if topic is not None:
        compat.ray_kv_delete(f"{_NOTES}{topic}/")


class Watcher:
    """Reads the notes of all trials; create it before they start."""

    def __init__(self) -> None:
        self._key = _WATCHERS + uuid.uuid4().hex
        compat.ray_kv_put(self._key, "")

    def read(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield trial, process and note, in the order of their keys."""
        for key in sorted(compat.ray_kv_keys(_NOTES)):
            value = compat.ray_kv_get(key)
            if value is not None:  # None: deleted in the meantime
                topic, _, who = key.removeprefix(_NOTES).partition("/")
                yield topic.partition(".")[0], who, json.loads(value)

    def close(self) -> None:
        """Unregister the watcher."""
        compat.ray_kv_delete(self._key)
