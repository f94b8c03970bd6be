"""Formats of tool calls: parsing, writing, and rejection of malformed text."""

from __future__ import annotations

import random

import pytest
import tool_toys as toys

from rllib_llm.errors import ConfigError
from rllib_llm.tools import FORMATS, ToolSet
from rllib_llm.tools.formats import check_format, find_calls, text_format

TOOLS = [toys.add, toys.search, toys.paint, toys.ask, toys.no_arguments]
FLAT = [toys.add, toys.search, toys.ask, toys.no_arguments]


def read(text: str, tool_format: str, sources=FLAT):
    """Return the names and arguments of calls, or their problems."""
    calls = ToolSet(sources, tool_format=tool_format).parse(text)
    return [c.problem or (c.name, c.arguments) for c in calls]


@pytest.mark.parametrize("tool_format", ["auto", *FORMATS])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("add", {"a": 3, "b": -4}),
        ("search", {"query": "a < b, or not"}),
        ("ask", {"number": 2.5}),
        ("no_arguments", {}),
    ],
)
def test_parsing_inverts_writing(tool_format, name, arguments):
    tools = ToolSet(FLAT, tool_format=tool_format)
    (call,) = tools.parse(tools.write_call(name, **arguments))
    assert (call.name, call.arguments, call.problem) == (name, arguments, None)


@pytest.mark.parametrize("tool_format", ["hermes", "llama3"])
def test_lists_are_written_and_read(tool_format):
    tools = ToolSet(TOOLS, tool_format=tool_format)
    arguments = {"colour": "red", "sizes": [1, 2], "gloss": True}
    (call,) = tools.parse(tools.write_call("paint", **arguments))
    assert (call.arguments, call.problem) == (arguments, None)


def test_arguments_are_written_in_the_order_of_the_function():
    tools = ToolSet(FLAT, tool_format="tags")
    assert tools.write_call("add", b=1, a=2) == "<add>2, 1</add>"


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (
            "hermes",
            'First. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
            '\n<tool_call>{"arguments": {"query": "x"}, "name": "search"}</tool_call>',
        ),
        (
            "llama3",
            '{"name": "add", "parameters": {"a": 1}}; '
            '{"type": "function", "name": "search", "parameters": {"query": "x"}}',
        ),
        (
            "llama3",
            'So: <|python_tag|>{"name": "add", "parameters": {"a": 1}}\n'
            '{"name": "search", "arguments": {"query": "x"}}',
        ),
        ("tags", "First <add>1</add>, then <search> x </search>."),
    ],
)
def test_several_calls_of_a_turn_come_in_order(tool_format, text):
    expected = [("add", {"a": 1}), ("search", {"query": "x"})]
    assert read(text, tool_format) == expected
    assert read(text, "auto") == expected


@pytest.mark.parametrize(
    ("tool_format", "text", "problem"),
    [
        ("hermes", "<tool_call>{</tool_call>", "is not valid JSON: "),
        ("hermes", "<tool_call>[1]</tool_call>", "needs a JSON object with a name"),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', "needs a JSON object"),
        ("hermes", '<tool_call>{"name": "add"', "there is no </tool_call>"),
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": "[]"}</tool_call>',
            "arguments must be a JSON object",
        ),
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": "a=1"}</tool_call>',
            "arguments is a text without JSON: ",
        ),
        (
            "hermes",
            '<tool_call>{"name": "add", "a": 1}</tool_call>',
            "'a' belongs into arguments",
        ),
        (
            "hermes",
            '<tool_call>{"name": "ask", "arguments": {"number": NaN}}</tool_call>',
            "NaN is no finite number",
        ),
        (
            "hermes",
            '<tool_call>{"name": "search", "arguments": {"query": "\\ud800"}}'
            "</tool_call>",
            "is not valid JSON",
        ),
        (
            "hermes",
            f"<tool_call>{'[' * 100_000}</tool_call>",
            "is not valid JSON: it is nested more than 64 deep",
        ),
        ("llama3", '{"name": "add", "parameters": {"a": 1}', "is not valid JSON"),
        ("llama3", "<|python_tag|>add(1)", "is not valid JSON"),
        ("tags", "<add>1", "there is no </add>"),
        ("tags", "<add>one</add>", "a: 'one' is not of type 'integer'"),
        ("tags", "<add></add>", "'a' is a required property"),
        ("tags", "<ask>nan</ask>", "'nan' is not of type 'number'"),
        ("tags", "<ask>1e999</ask>", "'1e999' is not of type 'number'"),
        ("tags", "<no_arguments>x</no_arguments>", "('text' was unexpected)"),
        ("tags", "<fly>1</fly>", "there is no tool 'fly'"),
    ],
)
def test_malformed_calls_name_the_problem(tool_format, text, problem):
    (found,) = read(text, tool_format)
    assert problem in found


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        ("hermes", "I do not need tool_call here. <add>1</add>"),
        ("llama3", 'The answer is {"name": "x"}'),
        ("llama3", '{"result": 3}'),
        ("llama3", "{never mind}"),
        ("tags", "3 < 4 and <so> on"),
        ("tags", "<answer><add>1</add></answer>"),
        ("tags", "<think><add>1</add></think> 2"),
        ("auto", "a <b>bold</b> answer"),
        ("auto", '{"result": 3}'),
    ],
)
def test_other_texts_contain_no_calls(tool_format, text):
    assert read(text, tool_format) == []


ORDER = {"sizes": {"a": [1, 2], "b": "x, {y}"}, "note": "red, or blue", "count": 3}


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize(
    "arguments",
    [
        ORDER,
        {**ORDER, "note": '"quoted"'},
        {**ORDER, "count": "three"},
        {**ORDER, "sizes": {}, "count": None},
        {**ORDER, "count": "null"},
        {**ORDER, "count": {"deep": [None, True, 1.5, "]"]}},
        {"sizes": {"a": 1}},
    ],
)
def test_objects_unions_and_commas_round_trip(tool_format, arguments):
    tools = ToolSet(toys.order, tool_format=tool_format)
    (call,) = tools.parse(tools.write_call("order", **arguments))
    assert (call.arguments, call.problem) == (arguments, None)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        (toys.add, {"b": 2}),  # the first argument would take it
        (toys.search, {"query": "say </search>"}),
    ],
)
def test_arguments_that_tags_cannot_express_are_refused(source, arguments):
    tools = ToolSet(source, tool_format="tags")
    with pytest.raises(ConfigError, match="cannot be written as tags"):
        tools.write_call(source.__name__, **arguments)


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        ),
        ("llama3", '{"name": "add", "parameters": "{\\"a\\": 1}"}'),
    ],
)
def test_arguments_may_be_a_json_string(tool_format, text):
    assert read(text, tool_format) == [("add", {"a": 1})]
    assert read(text, "auto") == [("add", {"a": 1})]


def test_the_last_argument_of_a_tag_keeps_its_commas():
    tools = ToolSet(toys.Failing(0), tool_format="tags")
    assert tools.parse("<fetch>a, b</fetch>")[0].arguments == {"url": "a, b"}


def test_descriptions_name_every_tool():
    for name, known in FORMATS.items():
        text = known.describe(ToolSet(TOOLS).schemas)
        for function in TOOLS:
            assert function.__name__ in text, name
    tags = ToolSet(FLAT, tool_format="tags").describe()
    assert tags.splitlines()[:2] == ["Tools:", "<add>a, b</add> Add two numbers."]


def test_auto_describes_tags_unless_an_argument_needs_json():
    assert text_format(ToolSet(FLAT).schemas) is FORMATS["tags"]
    assert text_format(ToolSet(TOOLS).schemas) is FORMATS["hermes"]


def test_unknown_formats_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'hermes'"):
        check_format("herms")


def test_parsing_never_raises():
    schemas = ToolSet(FLAT).schemas
    source = random.Random(0)
    parts = ["<tool_call>", "</tool_call>", "<add>", "</add>", "{", "}", '"name"', ":"]
    parts += [
        '"add"',
        '"parameters"',
        ",",
        "1",
        "[",
        "\\u",
        "<|python_tag|>",
        "é",
        "\n",
    ]
    for _ in range(3000):
        text = "".join(source.choices(parts, k=source.randint(0, 25)))
        for tool_format in ("auto", *FORMATS):
            for call in find_calls(text, schemas, tool_format):
                assert isinstance(call.name, str)


def test_long_texts_are_read_quickly():
    import time

    schemas = ToolSet(FLAT).schemas
    for part in ("<add>", "<tool_call>", "{", "<a>", '{"name": 1} '):
        for tool_format in ("auto", *FORMATS):
            began = time.process_time()
            find_calls(part * 5_000, schemas, tool_format)
            assert time.process_time() - began < 5, (part, tool_format)
