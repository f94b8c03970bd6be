"""The sandbox that runs model-written programs."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any

from rllib_llm.errors import ConfigError
from rllib_llm.sandbox.calls import Request, SandboxResult
from rllib_llm.sandbox.support import check_backend


class Sandbox:
    """Runs Python programs, each in a fresh process without any rights.

    All sandboxes of a process share one server, which starts at the first call.
    Threads may share a sandbox. Pickling keeps its settings only.

    Args:
        backend: "fork_server": CPython isolated by Landlock and seccomp; "monty": the
            Python subset of pydantic-monty (extra ``sandbox``).
        timeout_s: Wall time of a program, > 0 s.
        memory_mb: Memory of a program, in MiB, in [8, 65536].
        max_output: Output of a program, in bytes, in [1, 2**24].

    Raises:
        ConfigError: If a value is out of range, or if the platform cannot isolate
            programs; the sandbox never falls back to weaker isolation.
        MissingExtraError: If pydantic-monty is selected and not installed.
    Example:
        >>> Sandbox().run("print(6 * 7)").stdout
        '42\\n'
    """

    def __init__(
        self,
        backend: str = "fork_server",
        *,
        timeout_s: float = 2.0,
        memory_mb: int = 256,
        max_output: int = 16_384,
    ):
        check_backend(backend)
        _require("timeout_s", timeout_s, 0.01, 3600.0, "seconds")
        _require("memory_mb", memory_mb, 8, 65_536, "MiB")
        _require("max_output", max_output, 1, 1 << 24, "bytes")
        self.backend = backend
        self.timeout_s, self.memory_mb = float(timeout_s), int(memory_mb)
        self.max_output = int(max_output)
        self._is_closed = False
        _runner(backend)  # fails early if the backend is not installed

    def run(
        self,
        code: str,
        stdin: str = "",
        inputs: dict[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> SandboxResult:
        """Run a program to its end or to a limit.

        Args:
            code: Source of the program.
            stdin: Text on its standard input.
            inputs: Global names defined at its start; JSON values.
            timeout_s: Wall time, in seconds; None: that of the sandbox.

        Returns:
            The output and status of the program. A program that fails does not raise
            an exception here.

        Raises:
            SandboxError: If the sandbox failed; the program is not at fault.
            ConfigError: If the sandbox is closed, or ``timeout_s`` out of range.
        """
        if self._is_closed:
            raise ConfigError("This sandbox is closed. Create another Sandbox().")
        seconds = self.timeout_s if timeout_s is None else timeout_s
        _require("timeout_s", seconds, 0.01, 3600.0, "seconds")
        limits = (float(seconds), self.memory_mb, self.max_output)
        runner = _runner(self.backend)
        with _lock:
            _users.setdefault(runner, weakref.WeakSet()).add(self)
        return runner.run(Request(code, stdin, inputs or {}, *limits))

    def close(self) -> None:
        """Reject further calls; closing the last sandbox stops the server."""
        self._is_closed = True
        with _lock:
            for runner, users in _users.items():
                was_user = self in users
                users.discard(self)
                if was_user and not users:
                    runner.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(
            Sandbox,
            timeout_s=self.timeout_s,
            memory_mb=self.memory_mb,
            max_output=self.max_output,
        )
        return make, (self.backend,)


_lock = threading.Lock()
_runners: dict[tuple[int, str], Any] = {}
_users: dict[Any, weakref.WeakSet[Sandbox]] = {}


def _runner(backend: str) -> Any:
    """Return the backend of this process; a forked process starts its own."""
    key = (os.getpid(), backend)
    with _lock:
        if key not in _runners:
            if backend == "monty":
                from rllib_llm.sandbox.monty import Monty

                _runners[key] = Monty()
            else:
                from rllib_llm.sandbox.fork_server import ForkServer

                _runners[key] = ForkServer()
        return _runners[key]


def _require(name: str, value: Any, low: float, high: float, unit: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise ConfigError(
            f"{name}={value!r} must be a number of {unit} from {low} to {high}."
        )
