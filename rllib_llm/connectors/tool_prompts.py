"""How a conversation with tools begins and goes on, for a chat template or without."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rllib_llm.data.types import Message
from rllib_llm.errors import TemplateError
from rllib_llm.tools.formats import check_format, text_format

_NAME = "probe_a2c7"
_VALUE = "Value-3be1"
_SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Description-8d40",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "A value."}},
            "required": ["value"],
        },
    },
}
_RESULTS = ("Result-c5f2", "Result-e96b")
_USER, _REPLY = "Task-19ab", "Reply-77d3"
_HERMES = re.compile(r'<tool_call>\s*\{\s*"name":\s*"' + _NAME)
_LLAMA3 = re.compile(r'\{\s*"name":\s*"' + _NAME + r'",\s*"parameters":')


def opening(
    observation: str,
    info: Mapping[str, Any],
    *,
    system: str | None,
    renderer: Any,
) -> tuple[list[Message], Sequence[dict[str, Any]] | None]:
    """Return a conversation's first messages, and the tools that its template presents.

    Args:
        observation: What the environment said first.
        info: What it returned beside it; ``tools`` (JSON schemas), ``tool_format``.
        system: The system message, if any.
        renderer: The ChatRenderer of the policy; None where it reads text.

    Returns:
        Messages, and the tools. Where the template cannot present them, or writes calls
        otherwise than the environment reads them, the first message describes the tools
        instead, and there are none.
    """
    tools = info.get("tools") or None
    if tools is not None:
        wanted = check_format(info.get("tool_format", "auto"))
        known = None if renderer is None else renderer.tool_format
        if known is None or wanted not in ("auto", known):
            if known is not None:
                warnings.warn(
                    f"The chat template writes calls of tools as {known!r}, the "
                    f"environment reads tool_format={wanted!r}, so the first message "
                    "describes the tools. Set tool_format to 'auto' in env_config to "
                    "use the template.",
                    stacklevel=2,
                )
            described = text_format(tools, wanted).describe(tools)
            observation, tools = f"{described}\n\n{observation}", None
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": observation}], tools


def later(observation: str, info: Mapping[str, Any], tools: Any) -> list[Message]:
    """Return the messages that show a later observation.

    Args:
        observation: Its text.
        info: What the environment returned beside it; ``tool_results``.
        tools: The tools that the template presents; without them results are text.
    """
    results = info.get("tool_results")
    if not tools or not results:
        return [{"role": "user", "content": observation}]
    return [{"role": "tool", **result} for result in results]


def template_tool_format(render: Callable[..., str]) -> str | None:
    """Return how a chat template writes calls; None if it cannot serve tools.

    Args:
        render: Renders messages, and ``tools``; raises TemplateError where the template
            does.
    """
    opened = [{"role": "user", "content": _USER}]
    talk = [*opened, {"role": "assistant", "content": _REPLY}]
    results = [{"role": "tool", "name": _NAME, "content": r} for r in _RESULTS]
    try:
        first = render(opened, tools=[_SCHEMA])
        shown = render([*talk, *results], tools=[_SCHEMA])
        plain = render([*talk, *results])
    except TemplateError:
        return None
    if _NAME not in first or not shown.startswith(first + _REPLY):
        return None
    # What is appended after a reply must not depend on the tools.
    tail = shown.split(_REPLY, 1)[1]
    if tail != plain.split(_REPLY, 1)[-1] or any(tail.count(r) != 1 for r in _RESULTS):
        return None
    written = _written_call(render, opened)
    if _HERMES.search(written):
        return "hermes"
    return "llama3" if _LLAMA3.search(written) else None


def _written_call(render: Callable[..., str], opened: list[Message]) -> str:
    """Return how the template itself would write a call."""
    function = {"name": _NAME, "arguments": {"value": _VALUE}}
    call = {"id": "call00001", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        return render([*opened, message], prompt=False)
    except TemplateError:
        return ""
