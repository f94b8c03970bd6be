"""Sandbox backend on pydantic-monty, a Rust interpreter of a subset of Python."""

from __future__ import annotations

import threading
import time
from typing import Any

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.sandbox.calls import TAIL_CHARS, Request, SandboxResult

try:
    import pydantic_monty
except ImportError as error:
    raise MissingExtraError.for_extra("pydantic-monty", "sandbox") from error

_GRACE_S = 30.0


class Monty:
    """Runs programs in the worker processes of pydantic-monty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Any = None

    def run(self, request: Request) -> SandboxResult:
        """Run a program; if its worker crashes, retry once.

        Raises:
            ConfigError: If the request has standard input, which monty lacks.
        """
        if request.stdin:
            raise ConfigError(
                "stdin: programs in monty have no standard input. Pass inputs, or use "
                "the sandbox 'fork_server'."
            )
        result = self._run_once(request)
        return self._run_once(request) if result.status == "killed" else result

    def close(self) -> None:
        """Stop the workers; the next call starts new ones."""
        with self._lock:
            if self._pool is not None:
                self._pool.__exit__(None, None, None)
            self._pool = None

    def _started(self) -> Any:
        with self._lock:
            if self._pool is None:
                self._pool = pydantic_monty.Monty().__enter__()
            return self._pool

    def _run_once(self, request: Request) -> SandboxResult:
        limits = pydantic_monty.ResourceLimits(
            max_feed_duration_secs=request.timeout_s,
            max_total_sleep_secs=request.timeout_s,
            max_memory=request.memory_mb << 20,
            max_recursion_depth=1000,
        )
        written = pydantic_monty.CollectStreams(max_bytes=request.max_output)
        began, status, error_text = time.monotonic(), "ok", ""
        try:
            with self._started().checkout(limits=limits) as session:
                session.feed_run(
                    request.code, inputs=request.inputs, print_callback=written
                )
        except pydantic_monty.MontyCrashedError:
            status = "killed"
        except pydantic_monty.MontyError as error:
            status, error_text = _status(error, request), _traceback(error)
        texts = {"stdout": "", "stderr": ""}
        for stream, text in written.output:
            texts[stream] += text
        return SandboxResult(
            texts["stdout"][: request.max_output],
            (texts["stderr"] + error_text)[-TAIL_CHARS:],
            status,
            time.monotonic() - began,
        )


def _status(error: Exception, request: Request) -> str:
    """Return the status of a program from monty's message, its only information."""
    text = str(error)
    if text.startswith("TimeoutError: ") and "limit exceeded" in text:
        return "timeout"
    if text.startswith("MemoryError"):
        is_output = f"> {request.max_output} bytes" in text
        return "output" if is_output else "memory"
    return "error"


def _traceback(error: Exception) -> str:
    display = getattr(error, "display", None)
    return display() if callable(display) else f"{error}\n"
