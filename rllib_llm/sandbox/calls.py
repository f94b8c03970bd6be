"""Requests, results and errors of sandbox calls."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm.errors import RLlibLLMError

TAIL_CHARS = 2_000  # characters of standard error that a result keeps
STATUSES = ("ok", "error", "timeout", "memory", "output", "killed")


class SandboxError(RLlibLLMError):
    """The sandbox itself failed; the program has neither failed nor succeeded.

    Callers must not turn it into a reward of zero: the episode is dropped instead.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxResult:
    """The output and exit status of one program.

    Attributes:
        stdout: Standard output, cut at the limit.
        stderr: The end of standard error, including the traceback of an exception.
        status: "ok"; "error": an exception or an exit status other than 0;
            "timeout": time limit; "memory": uncaught MemoryError; "output": output
            limit; "killed": ended by a signal, e.g. a crash.
        seconds: Wall time from start to end.
    """

    stdout: str
    stderr: str
    status: str
    seconds: float

    @property
    def ok(self) -> bool:
        """True if the program exited with status 0."""
        return self.status == "ok"


@dataclasses.dataclass(frozen=True)
class Request:
    """One program and its limits.

    Attributes:
        code: Source of the program.
        stdin: Text on its standard input.
        inputs: Global names defined at its start, as JSON.
        timeout_s: Limit of wall time and, rounded up, of CPU time, in seconds.
        memory_mb: Memory limit, in MiB.
        max_output: Limit of standard output and error together, in bytes.
    """

    code: str
    stdin: str
    inputs: dict[str, Any]
    timeout_s: float
    memory_mb: int
    max_output: int
