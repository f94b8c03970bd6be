"""Execution of tools in separate processes, which can be killed.

A process starts on demand and is reused for later calls; a dead one is replaced. Calls
and results are lines of JSON (``child.py``).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from rllib_llm.tools.tool import ToolTimeout, ToolUnavailable

_START_S = 60.0  # to start Python and to import the tool's module


class ProcessError(Exception):
    """An exception of a tool in its process, or the death of the process."""


class _Child:
    """A running process."""

    def __init__(self) -> None:
        # The child must import the tool's module from the same place as the parent.
        paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rllib_llm.tools.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout  # pipes
        self._calls, self._lines = self._process.stdin, self._process.stdout
        self._late = False

    def write(self, line: bytes) -> None:
        """Send a call."""
        try:
            self._calls.write(line)
            self._calls.flush()
        except OSError as error:
            raise ToolUnavailable(f"The tool's process has ended: {error}") from error

    def read_line(self, timeout_s: float | None) -> bytes:
        """Return a line; b"" if the process died or exceeded the time limit."""
        timer = None
        if timeout_s is not None:
            timer = threading.Timer(timeout_s, self._kill_late)
            timer.start()
        try:
            return self._lines.readline()
        finally:
            if timer is not None:
                timer.cancel()

    @property
    def was_late(self) -> bool:
        """True if the process was killed at the time limit."""
        return self._late

    def _kill_late(self) -> None:
        self._late = True
        self.kill()

    def kill(self) -> int:
        """Kill the process and its children; return its exit status."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError, PermissionError):
            self._process.kill()  # no process groups on this platform, or gone already
        return self._process.wait()


_idle: list[_Child] = []
_lock = threading.Lock()


def call(
    function: Callable[..., Any], arguments: dict[str, Any], timeout_s: float | None
) -> str:
    """Run a function of an importable module in another process.

    Args:
        function: A function at the top level of its module.
        arguments: JSON values by name.
        timeout_s: Time limit in seconds, without the start of the process; the
            process is killed when it is exceeded.

    Returns:
        The result as text.

    Raises:
        ToolTimeout: If the call exceeded the time limit.
        ToolUnavailable: If no process could be started, or if the tool raised it.
        ProcessError: If the tool raised another exception, or its process died.
    """
    with _lock:
        child = _idle.pop() if _idle else _Child()
    names = {"module": function.__module__, "name": function.__qualname__}
    request = json.dumps({**names, "arguments": arguments})
    try:
        child.write(request.encode() + b"\n")
        line = child.read_line(_START_S)
        if not line:
            raise ToolUnavailable(
                f"The tool's process ended with status {child.kill()} before it was "
                "ready; see its error above."
            )
        if "ready" in json.loads(line):  # otherwise the module cannot be imported
            line = child.read_line(timeout_s)
        if child.was_late:
            raise ToolTimeout
        if not line:
            raise ProcessError(f"its process died with status {child.kill()}")
    except BaseException:
        # Its late reply must not be taken for that of the next call.
        child.kill()
        raise
    with _lock:
        _idle.append(child)
    reply = json.loads(line)
    if reply.get("unavailable"):
        raise ToolUnavailable(reply["error"])
    if "error" in reply:
        raise ProcessError(reply["error"])
    return reply["text"]


@atexit.register
def close() -> None:
    """Kill all idle processes."""
    with _lock:
        while _idle:
            _idle.pop().kill()
