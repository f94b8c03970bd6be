"""Testing a function that a model wrote.

The model's code runs in the sandbox and is given the arguments only. What it returns
comes back as JSON and is compared here: right values never enter the sandbox, so that
no code can look them up, and whatever it prints in their place it has to get right.
"""

from __future__ import annotations

import dataclasses
import json
import keyword
import secrets
from collections.abc import Sequence
from typing import Any

from rllib_llm.graders.json_text import MAX_DEPTH, is_too_deep
from rllib_llm.graders.rows import values_match
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
        arguments: What the function is called with; values as JSON has them.
        result: What it must return.
    """

    arguments: tuple[Any, ...]
    result: Any


@dataclasses.dataclass(frozen=True)
class CaseReport:
    """What became of one test.

    Attributes:
        passed: Whether the function returned the right value.
        returned: What it returned; None if it did not.
        error: Why it did not, in words; empty if it did.
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
    """Call a function with the arguments of each case, and compare what it returns.

    All calls are made in one program. Tuples and lists count as equal, as in JSON; an
    int and a float do if their values do; True and 1 do not.

    Args:
        code: The model's program, which defines the function.
        name: The function's name.
        cases: The tests.
        sandbox: Where it runs.
        timeout_s: Wall time of all calls together, in seconds; None: the sandbox's.
        tolerance: Largest relative and absolute difference of floats.

    Returns:
        One report per case; values nested more than 64 deep do not pass. What came
        before a crash or a limit counts.

    Raises:
        ValueError: If ``name`` is no name of a function.
        SandboxError: If the sandbox failed; nothing is said of the code.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"name={name!r} must be the name of a function.")
    mark = secrets.token_hex(8)
    inputs = {"_test_cases": [list(c.arguments) for c in cases], "_test_mark": mark}
    program = code + _DRIVER.format(name=name)
    result = sandbox.run(program, inputs=inputs, timeout_s=timeout_s)
    lines = [t for t in result.stdout.split("\n") if t.startswith(mark)]
    told = [_read(line[len(mark) :]) for line in lines[: len(cases)]]
    error = _why(result.status, result.stderr)
    reports = []
    for case, (is_value, value) in zip(cases, told, strict=False):
        if is_value:
            passed = values_match(value, case.result, tolerance)
            reports.append(CaseReport(passed, value))
        else:
            reports.append(CaseReport(False, error=_one_line(value)))
    missing = len(cases) - len(reports)
    return reports + [CaseReport(False, error=error)] * missing


def _read(line: str) -> tuple[bool, Any]:
    """Return whether a call returned, and what; the code may have forged it."""
    try:
        is_value, value = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return False, "no result"
    if is_too_deep(value):
        return False, f"returned a value nested more than {MAX_DEPTH} deep"
    return is_value is True, value


def _one_line(error: Any) -> str:
    """Return what the driver says of an exception; the code may have forged it."""
    is_said = isinstance(error, str) and error
    return error[:_MAX_ERROR] if is_said else "no result"


def _why(status: str, stderr: str) -> str:
    """Say why results are missing."""
    limits = {
        "timeout": "took too long",
        "memory": "took too much memory",
        "output": "printed too much",
        "killed": "crashed",
    }
    last = stderr.strip().rpartition("\n")[2]
    return limits.get(status) or last[:_MAX_ERROR] or "ended early"
