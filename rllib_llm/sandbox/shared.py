"""Sandboxes shared by the environments of one process."""

from __future__ import annotations

import functools

from rllib_llm.sandbox.calls import SandboxResult
from rllib_llm.sandbox.sandbox import Sandbox

_LIMITS = {
    "timeout": "It took too long.",
    "memory": "It took too much memory.",
    "output": "It printed too much.",
    "killed": "It crashed.",
}


@functools.lru_cache(maxsize=64)
def shared_sandbox(
    backend: str = "fork_server", timeout_s: float = 2.0, memory_mb: int = 256
) -> Sandbox:
    """Return the process's sandbox with these settings; do not close it."""
    return Sandbox(backend, timeout_s=timeout_s, memory_mb=memory_mb)


def result_text(result: SandboxResult, max_chars: int = 200) -> str:
    """Return a short text on the result of a program, for a model to read.

    Args:
        result: Result of the program.
        max_chars: Maximum number of characters of output; the end is cut off.

    Returns:
        The output, and for a failure the last line of the traceback or the limit hit.
    """
    out = result.stdout.strip()
    out = out if len(out) <= max_chars else out[:max_chars] + "..."
    if result.ok:
        return out or "It printed nothing."
    error = result.stderr.strip().rpartition("\n")[2][:max_chars]
    why = _LIMITS.get(result.status) or error or "It failed."
    return f"{out}\n{why}" if out else why
