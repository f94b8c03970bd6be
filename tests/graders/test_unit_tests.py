"""Unit tests of model-written functions: right functions pass, cheats fail."""

import pytest

from rllib_llm.graders import Case, run_tests
from rllib_llm.sandbox import Sandbox

SQUARES = [Case((n,), n * n) for n in range(2, 6)]


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(timeout_s=5.0)


def passed(sandbox, code, cases=SQUARES, **settings):
    return [r.passed for r in run_tests(code, "f", cases, sandbox, **settings)]


def test_right_functions_pass_and_wrong_ones_report_why(sandbox):
    assert passed(sandbox, "def f(n):\n    return n * n") == [True] * 4
    assert passed(sandbox, "f = lambda n: n ** 2.0") == [True] * 4
    assert passed(sandbox, "def f(n):\n    return n * n if n < 4 else 0") == [
        *[True] * 2,
        *[False] * 2,
    ]
    reports = run_tests("def f(n):\n    return 8 / (n - 3)", "f", SQUARES, sandbox)
    assert [r.error for r in reports] == [
        "",
        "ZeroDivisionError: division by zero",
        "",
        "",
    ]
    assert reports[0].returned == -8
    (report,) = run_tests("def g(n): pass", "f", SQUARES[:1], sandbox)
    assert report.error == "NameError: name 'f' is not defined"
    (report,) = run_tests("def f(n:", "f", SQUARES[:1], sandbox)
    assert "SyntaxError" in report.error
    (report,) = run_tests("def f(n):\n    return {1}", "f", SQUARES[:1], sandbox)
    assert "not JSON serializable" in report.error


def test_printed_text_is_not_a_result(sandbox):
    code = "print('[true, 4]')\ndef f(n):\n    print('[true, 4]', n)\n    return n * n"
    assert passed(sandbox, code) == [True] * 4
    assert passed(sandbox, code.replace("n * n", "0")) == [False] * 4


def test_values_of_all_kinds_come_back(sandbox):
    values = [[1, "a", None, True], {"a": [1.5]}, "\u00e9\n", -3, []]
    cases = [Case((value,), value) for value in values]
    assert passed(sandbox, "def f(x):\n    return x", cases) == [True] * 5
    assert passed(sandbox, "def f(x):\n    return (1, 2)", [Case((0,), [1, 2])]) == [
        True
    ]
    assert passed(sandbox, "def f(a, b):\n    return a + b", [Case((1, 2), 3)]) == [
        True
    ]
    close = [Case((0,), 0.3)]
    assert passed(sandbox, "def f(x):\n    return 0.1 + 0.2", close) == [True]
    assert passed(sandbox, "def f(x):\n    return 0.301", close, tolerance=0.1) == [
        True
    ]


def test_results_before_a_limit_count(sandbox):
    slow = "def f(n):\n    while n == 4: pass\n    return n * n"
    reports = run_tests(slow, "f", SQUARES, sandbox, timeout_s=1.0)
    assert [r.error for r in reports[2:]] == ["took too long"] * 2
    assert [r.passed for r in reports] == [True, True, False, False]
    crash = "import os\ndef f(n):\n    if n == 3: os.abort()\n    return n * n"
    reports = run_tests(crash, "f", SQUARES, sandbox)
    assert reports[-1].error == "crashed"
    assert [r.passed for r in reports] == [True, False, False, False]


CHEATS = {
    "always equal": "class E:\n    def __eq__(self, o): return True\n"
    "def f(n): return E()",
    "subclass": "class I(int):\n    def __eq__(self, o): return True\n"
    "def f(n): return I(7)",
    "exit": "import os; os._exit(0)",
    "exit in test": "import os\ndef f(n): os._exit(0)",
    "system exit": "import sys\ndef f(n): sys.exit(0)",
    "forged marks": "import sys\ndef f(n):\n    print('\\n' + "
    "sys._getframe(1).f_locals['mark'] + '[true, 0]'); return 0",
    "forged json": "import json\njson.dumps = lambda x: '[true, true]'\ndef f(n): pass",
    "not json": "import json\njson.dumps = lambda x: 'passed'\ndef f(n): pass",
    "huge": "def f(n): return 'x' * 10 ** 6",
    "looks up": "import sys\ndef f(n):\n    c = sys._getframe(1).f_locals['cases']\n"
    "    return c[0]",
    "gc": "import gc\ndef f(n):\n    return [o for o in gc.get_objects() "
    "if isinstance(o, dict) and 'result' in o][:1]",
    "imports the grader": "def f(n):\n    import rllib_llm.graders as g\n"
    "    g.unit_tests.values_match = lambda *a: True\n    return 0",
    "patches print": "import builtins\nbuiltins.print = lambda *a, **k: None\n"
    "def f(n): return n * n",
    "empty": "",
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_do_not_pass(sandbox, name):
    assert passed(sandbox, CHEATS[name]) == [False] * 4


def test_right_values_never_enter_the_sandbox(sandbox):
    asked = []

    class Spy:
        def run(self, code, **settings):
            asked.append((code, settings))
            return sandbox.run(code, **settings)

    assert passed(Spy(), "def f(n):\n    return 1", [Case((2,), 971_237)]) == [False]
    assert "971237" not in repr(asked)


def test_invalid_function_names_are_refused(sandbox):
    for name in ("f()", "import", ""):
        with pytest.raises(ValueError, match="name"):
            run_tests("", name, SQUARES, sandbox)


def test_monty_tests_functions_as_well():
    pytest.importorskip("pydantic_monty")
    with Sandbox("monty") as monty:
        assert passed(monty, "def f(n):\n    return n * n") == [True] * 4
        assert passed(monty, "def f(n):\n    return 1 / 0") == [False] * 4
