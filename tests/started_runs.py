"""Training in a process of its own, which a test stops before its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from rllib_llm.runs import checkpoints


@contextlib.contextmanager
def started(*arguments, stdout=subprocess.DEVNULL, **keywords):
    """Start ``rllib-llm`` as a session of its own, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rllib_llm", *map(str, arguments)],
        start_new_session=True,
        stdout=stdout,
        **keywords,
    )
    try:
        yield process
    finally:
        # Also where the test failed: an endless run would slow all later tests.
        kill(process)


def kill(process):
    """Kill a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(process, is_so, *, seconds):
    """Wait until something is true of a process that runs on."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"Timeout: not within {seconds} s."
        assert process.poll() is None, "The run has ended."
        time.sleep(0.05)


def wait_for_checkpoint(process, folder, trials, name, *, seconds):
    """Wait until the only trial has a checkpoint of this name, or a later one."""

    def is_there():
        newest = [checkpoints.newest_checkpoint(t) for t in folder.glob(trials)]
        return any(each is not None and each.name >= name for each in newest)

    wait_until(process, is_there, seconds=seconds)
