"""Text formats of tool calls and tool results.

Pure text functions, which do not run tools. A format parses calls, describes tools to
a model whose chat template cannot, and renders results into a user message.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.tools.json_texts import load_json, load_json_prefix
from rllib_llm.tools.tags import join_arguments, split_arguments
from rllib_llm.tools.tool import RESERVED

Schemas = Sequence[dict[str, Any]]
"""JSON schemas of tools, as :attr:`rllib_llm.tools.Tool.schema`."""

_HERMES = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_TAG = re.compile(r"<([A-Za-z_]\w*)>")
_PYTHON_TAG = "<|python_tag|>"
_SCALARS = ("string", "integer", "number", "boolean")


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model wrote it.

    Attributes:
        name: Name of the tool; "" if it cannot be parsed.
        arguments: Arguments by name.
        problem: Reason why the call cannot run; None if it can.
    """

    name: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    problem: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ToolFormat:
    """A text format of tool calls.

    Attributes:
        find: Parses all calls of a completion, given the schemas by name.
        describe: Returns the description of the tools and of the format for a model.
        write: Returns the text of a call, given name, arguments and the JSON schema.
        results: Joins the texts of a turn's results into a user message.
    """

    find: Callable[[str, dict[str, Any]], list[Call]]
    describe: Callable[[Schemas], str]
    write: Callable[[str, dict[str, Any], dict[str, Any]], str]
    results: Callable[[Sequence[str]], str]


def find_calls(completion: str, schemas: Schemas, tool_format: str) -> list[Call]:
    """Return the calls in a completion, in order, including malformed ones.

    ``"auto"`` accepts ``<tool_call>``, JSON with ``parameters``, and tags named after
    an existing tool.
    """
    by_name = {s["function"]["name"]: s["function"]["parameters"] for s in schemas}
    if tool_format != "auto":
        return FORMATS[tool_format].find(completion, by_name)
    if "<tool_call>" in completion:
        return _find_hermes(completion, by_name)
    return _find_llama3(completion, by_name) or [
        call for call in _find_tags(completion, by_name) if call.name in by_name
    ]


def text_format(schemas: Schemas, tool_format: str = "auto") -> ToolFormat:
    """Return the format of calls for a chat template without support for tools.

    ``"auto"`` selects tags, or ``"hermes"`` if an argument is a list or an object.
    """
    if tool_format == "auto":
        parameters = [s["function"]["parameters"] for s in schemas]
        flat = all(
            p.get("type") in _SCALARS
            for parameter in parameters
            for p in parameter.get("properties", {}).values()
        )
        tool_format = "tags" if flat else "hermes"
    return FORMATS[tool_format]


def check_format(tool_format: object) -> str:
    """Return the name of an existing format, or ``"auto"``.

    Raises:
        ConfigError: If there is no such format.
    """
    tool_formats = ("auto", *FORMATS)
    if tool_format not in tool_formats:
        raise ConfigError(
            f"Unknown tool_format {tool_format!r}. "
            + did_you_mean(str(tool_format), tool_formats)
        )
    return tool_format


def load_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call as OpenAI's API encodes them.

    Raises:
        ConfigError: If the text is not a JSON object.
    """
    try:
        arguments = load_json(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ConfigError(
            f"The arguments of a tool call are {text[:100]!r}; they must be a text "
            "with a JSON object. Send them back as they were received."
        )
    return arguments


def _json_call(value: object, keys: tuple[str, ...]) -> Call:
    """Parse ``{"name": ..., <one of keys>: {...}}``."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", {}, "a call needs a JSON object with a name")
    key = next((k for k in keys if k in value), keys[0])
    arguments = value.get(key, {})
    if isinstance(arguments, str):  # OpenAI's API encodes them as a JSON string
        try:
            arguments = load_json(arguments)
        except ValueError as error:
            return Call(value["name"], {}, f"{key} is a text without JSON: {error}")
    if not isinstance(arguments, dict):
        return Call(value["name"], {}, f"{key} must be a JSON object")
    extra = sorted(set(value) - {"name", "type", key})
    problem = f"{extra[0]!r} belongs into {key}" if extra else None
    return Call(value["name"], arguments, problem)


# hermes -------------------------------------------------------------------------------


def _find_hermes(completion: str, schemas: dict[str, Any]) -> list[Call]:
    calls = []
    for text, end in _HERMES.findall(completion):
        if not end:
            calls.append(Call("", {}, "there is no </tool_call>"))
            continue
        try:
            calls.append(_json_call(load_json(text), ("arguments",)))
        except ValueError as error:
            calls.append(Call("", {}, f"the call is not valid JSON: {error}"))
    return calls


def _describe_hermes(schemas: Schemas) -> str:
    lines = [json.dumps(s["function"], ensure_ascii=False) for s in schemas]
    return (
        "You can call these tools, given as JSON schemas:\n"
        + "\n".join(lines)
        + '\nTo call one, write <tool_call>{"name": its name, "arguments": {argument: '
        "value}}</tool_call>; you then read its result."
    )


def _write_hermes(
    name: str, arguments: dict[str, Any], parameters: dict[str, Any]
) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _hermes_results(texts: Sequence[str]) -> str:
    return "\n".join(f"<tool_response>\n{t}\n</tool_response>" for t in texts)


# llama3 -------------------------------------------------------------------------------


def _find_llama3(completion: str, schemas: dict[str, Any]) -> list[Call]:
    """Parse JSON objects with a name; a JSON answer does not have one."""
    _, tag, text = completion.rpartition(_PYTHON_TAG)
    text = text.strip()
    if not tag and not text.startswith("{"):
        return []
    calls = []
    try:
        for value in _objects(text):
            if tag or (isinstance(value, dict) and "name" in value):
                calls.append(_json_call(value, ("parameters", "arguments")))
    except ValueError as error:
        if tag or '"name"' in text:
            calls.append(Call("", {}, f"the call is not valid JSON: {error}"))
    return calls


def _objects(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, separated by ``;`` or white space.

    Raises:
        ValueError: If the text holds anything else.
    """
    text = text.lstrip()
    while text:
        value, end = load_json_prefix(text)
        yield value
        text = text[end:].lstrip("; \t\r\n")


def _describe_llama3(schemas: Schemas) -> str:
    lines = [json.dumps(s["function"], ensure_ascii=False) for s in schemas]
    return (
        "You can call these tools, given as JSON schemas:\n"
        + "\n".join(lines)
        + '\nTo call one, write nothing but {"name": its name, "parameters": '
        "{argument: value}}; you then read its result."
    )


def _write_llama3(
    name: str, arguments: dict[str, Any], parameters: dict[str, Any]
) -> str:
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


# tags ---------------------------------------------------------------------------------


def _find_tags(completion: str, schemas: dict[str, Any]) -> list[Call]:
    """Parse ``<name>text</name>``; tags inside ``<answer>`` are not calls."""
    calls, start, unclosed = [], 0, set()
    while match := _TAG.search(completion, start):
        name, start = match[1], match.end()
        if name in unclosed:
            continue
        end = completion.find(f"</{name}>", start)
        if end < 0:
            unclosed.add(name)  # search a long text once, not once per tag
            if name in schemas:
                calls.append(Call(name, {}, f"there is no </{name}>"))
            continue
        text, start = completion[match.end() : end], end + len(name) + 3
        if name in schemas:
            calls.append(Call(name, split_arguments(text, schemas[name])))
        elif name not in RESERVED:
            calls.append(Call(name))
    return calls


def _describe_tags(schemas: Schemas) -> str:
    lines = []
    for schema in schemas:
        function = schema["function"]
        names = ", ".join(function["parameters"].get("properties", {}))
        summary = function["description"].split("\n")[0]
        lines.append(f"{_tags(function['name'], names)} {summary}")
    return "Tools:\n" + "\n".join(lines)


def _write_tags(
    name: str, arguments: dict[str, Any], parameters: dict[str, Any]
) -> str:
    return _tags(name, join_arguments(name, arguments, parameters))


def _tags(name: str, text: str) -> str:
    return f"<{name}>{text}</{name}>"


FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat(
        _find_hermes, _describe_hermes, _write_hermes, _hermes_results
    ),
    "llama3": ToolFormat(_find_llama3, _describe_llama3, _write_llama3, "\n".join),
    "tags": ToolFormat(_find_tags, _describe_tags, _write_tags, "\n".join),
}
