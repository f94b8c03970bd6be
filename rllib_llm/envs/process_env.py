"""An environment in a separate process, for libraries that cannot share one."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
from typing import IO, Any

from rllib_llm.errors import RLlibLLMError

_LENGTH = struct.Struct(">Q")
_EXIT_S = 5.0


class EnvProcessError(RLlibLLMError):
    """The process of an environment died or could not start.

    Handled like an exception of the environment: the episode is dropped and repeated.
    """


class ProcessEnv:
    """Forwards ``reset``, ``step`` and ``close`` to an environment in another process.

    The process starts at the first call and ends with :meth:`close`, :meth:`kill` or
    its parent. Exceptions of the environment are raised here, with the trace of the
    process as a note.

    Args:
        maker: A pickled function without arguments that returns the environment.
    """

    def __init__(self, maker: bytes):
        self._maker = maker
        self._process: subprocess.Popen[bytes] | None = None

    def reset(self, **keywords: Any) -> Any:
        """Call the environment's ``reset``."""
        return self._ask("reset", (), keywords)

    def step(self, action: object) -> Any:
        """Call the environment's ``step``."""
        return self._ask("step", (action,), {})

    def close(self) -> None:
        """Close the environment and end its process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin and process.stdout  # pipes
        try:
            process.stdin.close()  # makes the process close the environment and exit
            process.wait(_EXIT_S)
        except (OSError, subprocess.TimeoutExpired):
            _kill(process)
        process.stdout.close()

    def kill(self) -> None:
        """Kill the process, e.g. because the environment hangs."""
        if self._process is not None:
            _kill(self._process)

    def _ask(self, method: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        process = self._process
        if process is None:
            process = self._process = _start()
            self._send(process, self._maker)
        self._send(process, pickle.dumps((method, args, keywords)))
        assert process.stdout is not None  # a pipe
        reply = receive(process.stdout)
        if reply is None:
            status, self._process = process.wait(), None
            raise EnvProcessError(
                f"The environment's process ended with status {status} in {method}(). "
                "See its error above; a negative status is the number of a signal."
            )
        value, error, trace = pickle.loads(reply)
        if error is not None:
            error.add_note(f"In the environment's process:\n{trace}")
            raise error
        return value

    def _send(self, process: subprocess.Popen[bytes], message: bytes) -> None:
        assert process.stdin is not None  # a pipe
        try:
            send(process.stdin, message)
        except OSError as error:
            _kill(process)
            self._process = None
            raise EnvProcessError(
                f"The environment's process has ended: {error}"
            ) from error


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message, preceded by its length."""
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    return message if len(message) == length else None


def _start() -> subprocess.Popen[bytes]:
    # The child must import the environment's module from the same place.
    paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "rllib_llm.envs.process_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C goes to the parent, which closes the pipe
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # includes the environment's children
    except (AttributeError, ProcessLookupError, PermissionError):
        process.kill()  # no process groups on this platform, or gone already
    process.wait()
