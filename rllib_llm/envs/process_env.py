"""An environment in a process of its own, for libraries that share no process."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
from typing import Any, BinaryIO

from rllib_llm.errors import RLlibLLMError

_LENGTH = struct.Struct(">Q")
_EXIT_S = 5.0


class EnvProcessError(RLlibLLMError):
    """The process of an environment died or could not start.

    The episode fails as one whose environment raised: it is dropped and played anew.
    """


class ProcessEnv:
    """Forwards ``reset``, ``step`` and ``close`` to an environment in another process.

    The process starts at the first call, ends with :meth:`close`, :meth:`kill`, or its
    parent. Exceptions of the environment are raised here, with a note of where.

    Args:
        maker: A pickled function without arguments that makes the environment.
    """

    def __init__(self, maker: bytes):
        self._maker = maker
        self._process: subprocess.Popen[bytes] | None = None

    def reset(self, **keywords: Any) -> Any:
        """Call the environment's ``reset``."""
        return self._ask("reset", (), keywords)

    def step(self, action: Any) -> Any:
        """Call the environment's ``step``."""
        return self._ask("step", (action,), {})

    def close(self) -> None:
        """Close the environment and end its process."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.stdin.close()  # the process closes the environment, and ends
            process.wait(_EXIT_S)
        except (OSError, subprocess.TimeoutExpired):
            _kill(process)
        process.stdout.close()

    def kill(self) -> None:
        """End the process at once, e.g. because the environment hangs."""
        if self._process is not None:
            _kill(self._process)

    def _ask(self, method: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._process is None:
            self._process = _start()
            self._send(self._maker)
        self._send(pickle.dumps((method, args, keywords)))
        reply = receive(self._process.stdout)
        if reply is None:
            status, self._process = self._process.wait(), None
            raise EnvProcessError(
                f"The environment's process ended with status {status} in {method}()."
            )
        value, error, trace = pickle.loads(reply)
        if error is not None:
            error.add_note(f"In the environment's process:\n{trace}")
            raise error
        return value

    def _send(self, message: bytes) -> None:
        try:
            send(self._process.stdin, message)
        except OSError as error:
            _kill(self._process)
            self._process = None
            raise EnvProcessError(
                f"The environment's process is gone: {error}"
            ) from error


def send(pipe: BinaryIO, message: bytes) -> None:
    """Write a message with its length before it."""
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: BinaryIO) -> bytes | None:
    """Return the next message; None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    return message if len(message) == length else None


def _start() -> subprocess.Popen[bytes]:
    # The environment's module is where the parent found it.
    paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "rllib_llm.envs.process_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # an interrupt ends the parent, which ends this one
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # and what the environment started
    except (AttributeError, ProcessLookupError, PermissionError):
        process.kill()  # no process groups here, or gone already
    process.wait()
