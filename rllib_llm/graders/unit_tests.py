"""Unit tests of a function that a model wrote.

The model's code runs in the sandbox and receives the arguments only. Its results come
back as JSON and are compared in this process. The right results never enter the
sandbox, so that the code cannot look them up; output forged by the code has to equal
them, too.
"""

from __future__ import annotations

import dataclasses
import json
import keyword
import secrets
from collections.abc import Sequence
from typing import Any

from rllib_llm.graders.json_text import MAX_DEPTH, is_too_deep
from rllib_llm.graders.query_results import values_match
from rllib_llm.sandbox import Sandbox

_MAX_ERROR = 200
_DRIVER = """

def _call_all(function, cases, mark):
    import json
    for arguments in cases:
        try:
            text = json.dumps([True, function(*arguments)])
        except Exception as error:
            text = json.dumps([False, f"{{type(error).__name__}}: {{error}}"[:200]])
        print("\\n" + mark + text, flush=True)

_call_all({name}, _test_cases, _test_mark)
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        arguments: Arguments of the call; JSON values.
        result: Right result.
    """

    arguments: tuple[Any, ...]
    result: Any


@dataclasses.dataclass(frozen=True)
class CaseReport:
    """The outcome of one test.

    Attributes:
        passed: Whether the function returned the right value.
        returned: Returned value; None without one.
        error: Reason for a missing value; empty if there is one.
    """

    passed: bool
    returned: Any = None
    error: str = ""


def run_tests(
    code: str,
    name: str,
    cases: Sequence[Case],
    sandbox: Sandbox,
    *,
    timeout_s: float | None = None,
    tolerance: float = 1e-9,
) -> list[CaseReport]:
    """Call a function with the arguments of each case, and compare its results.

    All calls run in one program. Tuples equal lists, as in JSON; an int equals a float
    of the same value; True does not equal 1.

    Args:
        code: The model's program, which defines the function.
        name: Name of the function.
        cases: Tests to run.
        sandbox: Sandbox that runs the program.
        timeout_s: Wall time of all calls together, in seconds; None: the sandbox's.
        tolerance: Maximum relative and absolute difference of floats.

    Returns:
        One report per case; values nested more than 64 deep do not pass. Results from
        before a crash or a limit count.

    Raises:
        ValueError: If ``name`` is not a valid function name.
        SandboxError: If the sandbox failed; the code is neither right nor wrong.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(
            f"name={name!r} must be a function name: a Python identifier that is not a "
            "keyword."
        )
    # Random, so that the code cannot print lines that pass for results of the driver.
    mark = secrets.token_hex(8)
    inputs = {"_test_cases": [list(c.arguments) for c in cases], "_test_mark": mark}
    program = code + _DRIVER.format(name=name)
    result = sandbox.run(program, inputs=inputs, timeout_s=timeout_s)
    lines = [t for t in result.stdout.split("\n") if t.startswith(mark)]
    replies = [_read(line[len(mark) :]) for line in lines[: len(cases)]]
    error = _why(result.status, result.stderr)
    reports = []
    for case, (is_value, value) in zip(cases, replies, strict=False):
        if is_value:
            passed = values_match(value, case.result, tolerance)
            reports.append(CaseReport(passed, value))
        else:
            reports.append(CaseReport(False, error=_one_line(value)))
    missing = len(cases) - len(reports)
    return reports + [CaseReport(False, error=error)] * missing


def _read(line: str) -> tuple[bool, Any]:
    """Return whether a call returned, and its value; the code may have forged both."""
    try:
        is_value, value = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False, "no result"
    if is_too_deep(value):
        return False, f"returned a value nested more than {MAX_DEPTH} deep"
    return is_value is True, value


def _one_line(error: Any) -> str:
    """Return the driver's text for an exception; the code may have forged it."""
    is_message = isinstance(error, str) and error
    return error[:_MAX_ERROR] if is_message else "no result"


def _why(status: str, stderr: str) -> str:
    """Return the reason for missing results."""
    limits = {
        "timeout": "took too long",
        "memory": "took too much memory",
        "output": "printed too much",
        "killed": "crashed",
    }
    last = stderr.strip().rpartition("\n")[2]
    return limits.get(status) or last[:_MAX_ERROR] or "ended early"
