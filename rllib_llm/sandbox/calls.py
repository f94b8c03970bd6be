"""What a call of a sandbox is, returns, and raises."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm.errors import RLlibLLMError

TAIL_CHARS = 2_000  # of standard error
STATUSES = ("ok", "error", "timeout", "memory", "output", "killed")


class SandboxError(RLlibLLMError):
    """A program could not be run, through no fault of its own; it earned nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxResult:
    """What became of a program.

    Attributes:
        stdout: What it printed, cut at the limit.
        stderr: The end of what it wrote there: the traceback, if it raised.
        status: "ok"; "error": it raised, or ended with another exit status than 0;
            "timeout": too much time; "memory": a MemoryError ended it; "output": it
            wrote too much; "killed": a signal ended it, e.g. a crash.
        seconds: Wall time from its start to its end.
    """

    stdout: str
    stderr: str
    status: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it came to its end."""
        return self.status == "ok"


@dataclasses.dataclass(frozen=True)
class Request:
    """One program and its limits.

    Attributes:
        code: Its text.
        stdin: What it can read.
        inputs: Global names it begins with, as JSON.
        timeout_s: Wall time, and, rounded up, CPU time.
        memory_mb: Memory, in MiB.
        max_output: Bytes it may write to standard output and error together.
    """

    code: str
    stdin: str
    inputs: dict[str, Any]
    timeout_s: float
    memory_mb: int
    max_output: int
