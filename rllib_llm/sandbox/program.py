"""Execution of one program, in a child of the fork server inside the jail."""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
import traceback
from typing import Any, NoReturn

OK, ERROR, MEMORY = 0, 1, 3  # exit codes; a program may forge any of them
_NAME = "<program>"
_TRACEBACK_CHARS = 4_000  # characters at the end, where the message stands


def open_streams() -> None:
    """Reopen the standard streams over descriptors 0, 1 and 2, as UTF-8."""
    how: dict[str, Any] = {"encoding": "utf-8", "closefd": False}
    sys.stdin = open(0, errors="replace", **how)  # noqa: SIM115
    sys.stdout = open(1, "w", errors="backslashreplace", **how)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", **how)  # noqa: SIM115


def run(source: str, inputs: dict[str, Any]) -> NoReturn:
    """Execute a program and exit the process with its status.

    Args:
        source: Source of the program.
        inputs: Global names defined at its start.
    """
    code = ERROR
    with contextlib.suppress(BaseException):
        random.seed(0)  # equal programs print equal output
        sys.argv = [_NAME]
        code = _execute(source, {"__name__": "__main__", **inputs})
        sys.stdout.flush()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    # Not sys.exit: the server's atexit handlers and buffers must not run in a child.
    os._exit(code)


def _execute(source: str, names: dict[str, Any]) -> int:
    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache[_NAME] = (len(source), None, lines, _NAME)  # for tracebacks
    try:
        exec(compile(source, _NAME, "exec"), names)
    except SystemExit as end:
        return _exit_code(end)
    except MemoryError:
        sys.stderr.write("MemoryError\n")
        return MEMORY
    except BaseException as error:  # any program, KeyboardInterrupt included
        sys.stderr.write(_program_traceback(error))
        return ERROR
    return OK


def _program_traceback(error: BaseException) -> str:
    """Return the traceback, restricted to frames of the program.

    Other frames hold paths, which differ from machine to machine.
    """
    summary = traceback.TracebackException.from_exception(error)
    chain = [summary]
    for part in chain:  # grows while it is iterated
        frames = [frame for frame in part.stack if frame.filename == _NAME]
        part.stack = traceback.StackSummary.from_list(frames)
        chain += [e for e in (part.__cause__, part.__context__) if e is not None]
    return "".join(summary.format())[-_TRACEBACK_CHARS:]


def _exit_code(end: SystemExit) -> int:
    if end.code is None or end.code == 0:
        return OK
    if not isinstance(end.code, int):
        sys.stderr.write(f"{end.code}\n")
    return ERROR
