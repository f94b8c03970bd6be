"""An object in a separate process, whose methods are called from this one."""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping
from typing import IO, Any

from rllib_llm.errors import RLlibLLMError

_LENGTH = struct.Struct(">Q")
_EXIT_S = 5.0


class EnvProcessError(RLlibLLMError):
    """The process of an environment died, hangs, or could not start.

    Handled like an exception of the environment: the episode is dropped and repeated.
    """


class ChildProcess:
    """Calls the methods of an object that lives in another process.

    The process starts at the first call and ends with :meth:`close`, :meth:`kill`, the
    collection of this object or its parent. Exceptions of the object are raised here,
    with the trace of the process as a note.

    Args:
        maker: A pickled function without arguments that returns the object.
        title: Name of the process in messages.
        environ: Variables of the process; None: those of this one.
    """

    def __init__(
        self,
        maker: bytes,
        title: str = "The environment's process",
        environ: Mapping[str, str] | None = None,
    ):
        self._maker = maker
        self._title = title
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process and its group; None while there is none."""
        return None if self._process is None else self._process.pid

    def call(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        keywords: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Call a method and return its value.

        Args:
            method: Its name.
            args: Arguments that can be pickled.
            keywords: Keyword arguments, likewise.
            timeout_s: Limit of wall time in seconds, the start of the process
                included; the process is killed after it. None: no limit.

        Raises:
            EnvProcessError: If the process has ended, or exceeds the limit. The next
                call starts another one.
            Exception: Any that the object raises.
        """
        process = self._process
        if process is None:
            process = self._process = _start(self._environ)
            # A collected Popen keeps its pipes, so that the process would go on.
            self._finalizer = weakref.finalize(self, _kill, process)
            # At the end of this process the pipe ends, and the other one closes its
            # object by itself.
            self._finalizer.atexit = False
            self._send(process, self._maker)
        self._send(process, pickle.dumps((method, args, dict(keywords or {}))))
        assert process.stdout is not None  # a pipe
        if timeout_s is not None and not _is_ready(process.stdout, timeout_s):
            self._forget()
            _kill(process)
            raise EnvProcessError(
                f"{self._title} did not answer {method}() within {timeout_s:g} s and "
                "was killed. Raise the time limit if the machine is busy."
            )
        reply = receive(process.stdout)
        if reply is None:
            status = process.wait()
            self._forget()
            raise EnvProcessError(
                f"{self._title} ended with status {status} in {method}(). "
                "See its error above; a negative status is the number of a signal."
            )
        value, error, trace = pickle.loads(reply)
        if error is not None:
            error.add_note(f"In the environment's process:\n{trace}")
            raise error
        return value

    def close(self) -> None:
        """Close the object and end its process."""
        process = self._process
        if process is None:
            return
        self._forget()
        assert process.stdin and process.stdout  # pipes
        try:
            process.stdin.close()  # makes the process close the object and exit
            process.wait(_EXIT_S)
        except (OSError, subprocess.TimeoutExpired):
            _kill(process)
        process.stdout.close()

    def kill(self) -> None:
        """Kill the process and its children, e.g. because they hang."""
        if self._process is not None:
            self._detach()
            _kill(self._process)

    def _forget(self) -> None:
        """Leave the process, which has ended or is about to."""
        self._process = None
        self._detach()

    def _detach(self) -> None:
        # Otherwise the collection would kill another process with the same number.
        if self._finalizer is not None:
            self._finalizer.detach()

    def _send(self, process: subprocess.Popen[bytes], message: bytes) -> None:
        assert process.stdin is not None  # a pipe
        try:
            send(process.stdin, message)
        except OSError as error:
            _kill(process)
            self._forget()
            raise EnvProcessError(f"{self._title} has ended: {error}") from error


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


def _is_ready(pipe: IO[bytes], timeout_s: float) -> bool:
    """Return whether a message begins in time; the end of the pipe counts as one."""
    # The child writes whole messages, one per call, so that reading cannot block then.
    # poll instead of select, which fails on descriptors beyond 1023.
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000.0))


def _start(environ: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    # The child must import the object's module from the same place.
    paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "rllib_llm.envs.process_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**(os.environ if environ is None else environ), "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C goes to the parent, which closes the pipe
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # includes the object's children
    except (AttributeError, ProcessLookupError, PermissionError):
        process.kill()  # no process groups on this platform, or gone already
    process.wait()
