"""Lock of a run folder, so that one process at a time trains in it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from ray.rllib.utils.annotations import override
from ray.tune import Callback

from rllib_llm.errors import ConfigError

LOCK_FILE = "run.lock"
_OWNER_FILE = "run.owner.json"


@contextlib.contextmanager
def run_lock(run: Path) -> Iterator[None]:
    """Hold the lock of a run folder within the block.

    The operating system releases it if the process dies.

    Raises:
        ConfigError: Another process holds the lock.
    """
    _acquire(run)
    try:
        yield
    finally:
        _lock_of(run).release()


class HoldRunLock(Callback):
    """Holds the lock of a run folder from Tune's start to its end.

    Args:
        run: The run folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run

    @override(Callback)
    def setup(self, *args: Any, **info: Any) -> None:
        """Acquire the lock; raise ConfigError if another process holds it."""
        _acquire(self._run)

    @override(Callback)
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Release the lock."""
        _lock_of(self._run).release()


# One object per file makes the lock reentrant within a process. The reference keeps it
# held: filelock releases a lock whose object is garbage collected.
_locks: dict[str, FileLock] = {}


def _lock_of(run: Path) -> FileLock:
    path = str(run.resolve() / LOCK_FILE)
    return _locks.setdefault(path, FileLock(path))


def _acquire(run: Path) -> None:
    run.mkdir(parents=True, exist_ok=True)
    owner = run / _OWNER_FILE
    try:
        _lock_of(run).acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"The run {run} is being trained by {_describe(owner)}. A second process "
            "would overwrite its checkpoints. Wait until it ends, stop it, or start a "
            "run with another name."
        ) from None
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
    }
    owner.write_text(json.dumps(holder), encoding="utf-8")


def _describe(owner: Path) -> str:
    try:
        holder = json.loads(owner.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # being written right now
        return "another process"
