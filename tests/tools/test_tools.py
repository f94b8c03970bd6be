"""Tools: schemas, validation of arguments, execution."""

from __future__ import annotations

import pickle
import sys

import pytest
import tool_toys as toys

from rllib_llm.errors import ConfigError
from rllib_llm.tools import Call, Tool, ToolSet, ToolUnavailable, tool, tools_of
from rllib_llm.tools.tool_set import tally


def run(sources, *calls: tuple[str, dict]):
    """Run calls of tools end to end: write, parse, check, run."""
    tools = ToolSet(sources, tool_format="hermes")
    text = "".join(tools.write_call(name, **arguments) for name, arguments in calls)
    return tools.run(tools.parse(text))


# Definition of tools ------------------------------------------------------------------


def test_schema_comes_from_hints_and_docstring():
    (add,) = tools_of(toys.add)
    assert add.schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "The first."},
                    "b": {"type": "integer", "description": "The second."},
                },
                "required": ["a"],
            },
        },
    }


def test_public_methods_of_an_object_are_tools_and_share_its_state():
    counter = toys.Counter()
    assert [t.name for t in tools_of([counter])] == ["up"]
    results = run(counter, ("up", {"by": 2}), ("up", {"by": 3}))
    assert [r.text for r in results] == ["2", "5"]
    assert counter.count == 5


def test_a_class_gets_a_new_object():
    assert run(toys.Counter, ("up", {"by": 2}))[0].text == "2"
    assert run(toys.Counter, ("up", {"by": 2}))[0].text == "2"


def test_inherited_methods_are_tools():
    class Child(toys.Counter):
        pass

    assert [t.name for t in tools_of(Child())] == ["up"]


def unhinted(a):
    """Lack a type hint.

    Args:
        a: Anything.
    """


def undescribed(a: int):
    """Lack a description of the argument."""


def answer(a: int):
    """Have a reserved name.

    Args:
        a: Anything.
    """


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (unhinted, "unhinted cannot be a tool.*type hint"),
        (undescribed, "undescribed cannot be a tool.*'Args:'"),
        (answer, "'answer' is reserved"),
        ([toys.add, toys.add], "Two tools have the name 'add'"),
        (object(), "does not define any tools"),
        ([], "list of tools is empty"),
    ],
)
def test_invalid_tools_are_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        ToolSet(source)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout_s": 0}, "timeout_s=0 must be > 0"),
        ({"retries": -1}, "retries=-1 must be"),
        ({"cost": float("nan")}, "cost=nan must be"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        tool(**settings)


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="timeout"):
        tool(timeout=3)


def test_methods_can_be_neither_pure_nor_in_a_process():
    class Odd:
        @tool(pure=True)
        def look(self) -> str:
            """Look."""
            return ""

    with pytest.raises(ConfigError, match="pure=True, but a method"):
        tools_of(Odd())

    @tool(process=True)
    def local() -> str:
        """Do it."""
        return ""

    with pytest.raises(ConfigError, match="top level of an importable module"):
        tools_of(local)


# Arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments", "problem"),
    [
        (toys.add, {"b": 1}, "'a' is a required property"),
        (toys.add, {"a": "1"}, "a: '1' is not of type 'integer'"),
        (toys.add, {"a": True}, "a: True is not of type 'integer'"),
        (toys.add, {"a": 1.5}, "a: 1.5 is not of type 'integer'"),
        (toys.add, {"a": 1, "c": 2}, "'c' was unexpected"),
        (toys.paint, {"colour": "pink", "sizes": []}, "'pink' is not one of"),
        (toys.paint, {"colour": "red", "sizes": ["x"]}, "sizes\\[0\\]: 'x' is not"),
        (toys.ask, {"number": None}, "number: None is not of type"),
    ],
)
def test_invalid_arguments_are_reported(function, arguments, problem):
    import re

    tools = ToolSet(function, tool_format="hermes")
    name = function.__name__
    (call,) = tools.parse(tools.write_call(name, **arguments))
    assert re.search(problem, call.problem)
    (result,) = tools.run([call])
    assert result.status == "malformed" and result.failed
    assert result.text.startswith(f"Error: {name}: ")


def test_arguments_are_converted_to_their_type_hints():
    assert run(toys.add, ("add", {"a": 3.0}))[0].text == "4"
    assert run(toys.ask, ("ask", {"number": 3, "maybe": None}))[0].text == "3 None"
    results = run(toys.paint, ("paint", {"colour": "red", "sizes": [1, 2]}))
    assert results[0].text == "red [1, 2] False"


def test_an_unknown_tool_is_reported_with_a_suggestion():
    tools = ToolSet([toys.add, toys.search], tool_format="hermes")
    (call,) = tools.parse('<tool_call>{"name": "serch"}</tool_call>')
    assert call.problem == "there is no tool 'serch'. Did you mean 'search'?"


# Running ------------------------------------------------------------------------------


def test_results_are_texts():
    assert run(toys.no_arguments, ("no_arguments", {}))[0].text == "Done."

    def many() -> dict:
        """Return several things."""
        return {"ä": [1, None]}

    def empty() -> str:
        """Return nothing."""
        return ""

    def half() -> str:
        """Return half a character."""
        return "a\ud800"

    texts = [r.text for r in run([many, empty, half], *((n, {}) for n in NAMES))]
    assert texts == ['{"ä": [1, null]}', "(nothing)", "a?"]


NAMES = ("many", "empty", "half")


def test_long_results_are_cut():
    tools = ToolSet(toys.search, tool_format="tags", max_result_chars=10)
    (result,) = tools.run(tools.parse("<search>abcdefgh</search>"))
    assert result.text == "found abcd... (4 more characters)"


def test_too_many_calls_are_not_run():
    tools = ToolSet(toys.Counter, tool_format="tags", max_calls=2)
    results = tools.run(tools.parse("<up>1</up>" * 3))
    assert [r.status for r in results] == ["ok", "ok", "malformed"]
    assert "at most 2 calls" in results[2].text


def test_exceptions_become_results_and_are_counted(caplog):
    results = run(toys.divide, ("divide", {"a": 1, "b": 0}))
    assert results[0].text == "Error: division by zero"
    assert results[0].status == "error"
    assert not caplog.records

    def buggy() -> str:
        """Have a bug."""
        return undefined  # noqa: F821

    for _ in range(3):
        assert run(buggy, ("buggy", {}))[0].status == "error"
    # It looks like a bug, so it is logged as well, once.
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "NameError" in caplog.text


def test_a_key_error_is_reported_without_its_quotes():
    def look() -> str:
        """Look it up."""
        raise LookupError("no order 3") if False else KeyError("no order 3")

    assert run(look, ("look", {}))[0].text == "Error: no order 3"


def test_a_tool_that_exits_is_reported():
    def leave() -> str:
        """Leave."""
        sys.exit("bye")

    assert run(leave, ("leave", {}))[0].status == "error"


def test_a_call_with_a_problem_is_never_run():
    counter = toys.Counter()
    tools = ToolSet(counter)
    tools.run([Call("up", {"by": 3}, "it must not")])
    assert counter.count == 0


# Cached results, cost, retries --------------------------------------------------------


def test_results_of_pure_tools_are_cached_and_cost_nothing():
    toys.calls.clear()
    results = run(toys.slow_square, *[("slow_square", {"n": n}) for n in (12, 12, 13)])
    assert [r.text for r in results] == ["144", "144", "169"]
    assert [r.cached for r in results] == [False, True, False]
    assert [r.cost for r in results] == [0.5, 0.0, 0.5]
    again = run(toys.slow_square, ("slow_square", {"n": 13}))  # another episode
    assert again[0].cached
    assert toys.calls == ["square 12", "square 13"]
    numbers = tally(results)
    assert numbers["tool_cache_hits"] == 1
    assert numbers["tool_cost"] == 1.0
    assert numbers["tool_calls"] == 3


def test_the_result_cache_is_bounded():
    from rllib_llm.tools.running import ResultCache

    cache = ResultCache(most=2)
    for n in (1, 2):
        cache.put(n, str(n))
    assert cache.get(1) == "1"  # most recently used
    cache.put(3, "3")
    assert [cache.get(n) for n in (1, 2, 3)] == ["1", None, "3"]


def test_failures_of_infrastructure_are_retried():
    (result,) = run(toys.Failing(times=2), ("fetch", {"url": "x"}))
    assert (result.text, result.retries, result.status) == ("page x", 2, "ok")


def test_failing_after_all_retries_raises():
    with pytest.raises(ToolUnavailable, match="'fetch' failed 3 time.*reset by peer"):
        run(toys.Failing(times=3), ("fetch", {"url": "x"}))


def test_a_tool_set_pickles_with_its_state():
    counter = toys.Counter()
    tools = ToolSet([counter, toys.add], tool_format="tags")
    tools.run(tools.parse("<up>4</up>"))
    copied = pickle.loads(pickle.dumps(tools))
    assert copied.run(copied.parse("<up>1</up>"))[0].text == "5"
    assert counter.count == 4


def test_a_tool_can_be_written_by_hand():
    schema = toys_schema("twice")
    twice = Tool("twice", schema, lambda text: text * 2)
    tools = ToolSet(twice, tool_format="tags")
    assert tools.run(tools.parse("<twice>ab</twice>"))[0].text == "abab"


def toys_schema(name):
    """Return the schema of a tool of one string."""
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    function = {"name": name, "description": "Do.", "parameters": parameters}
    return {"type": "function", "function": function}
