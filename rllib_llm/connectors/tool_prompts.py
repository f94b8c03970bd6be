"""Messages that present tools and their results, by the chat template or as text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import Message
from rllib_llm.errors import TemplateError
from rllib_llm.pictures.contract import preceding_messages, with_pictures
from rllib_llm.tools.formats import check_format, text_format

if TYPE_CHECKING:
    from rllib_llm.connectors.chat import ChatRenderer

# Strings that no template contains, so that finding one shows where it was rendered.
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
    renderer: ChatRenderer | None,
) -> tuple[list[Message], Sequence[dict[str, Any]] | None]:
    """Return a conversation's first messages, and the tools that its template presents.

    Args:
        observation: The environment's first observation.
        info: The environment's info: ``tools`` (JSON schemas), ``tool_format``;
            ``preceding_messages``, before the observation.
        system: The system message, if any; one in these messages replaces it.
        renderer: The ChatRenderer of the policy; None for a policy that reads text.

    Returns:
        Messages, and the tools. If the template cannot present the tools, or writes
        calls in another format than the environment reads, the first message describes
        the tools and the returned tools are None.
    """
    tools = info.get("tools") or None
    if tools is not None:
        env_format = check_format(info.get("tool_format", "auto"))
        template_format = None if renderer is None else renderer.tool_format
        if template_format is None or env_format not in ("auto", template_format):
            if template_format is not None:
                warnings.warn(
                    f"The chat template writes tool calls as {template_format!r}, but "
                    f"the environment reads tool_format={env_format!r}, so the first "
                    "message describes the tools. Set tool_format to 'auto' in "
                    "env_config to use the template.",
                    stacklevel=2,
                )
            # The format that the environment reads, whichever the template would write.
            described = text_format(tools, env_format).describe(tools)
            observation, tools = f"{described}\n\n{observation}", None
    system = system or info.get("system_prompt")
    before = preceding_messages(info)
    if before and before[0]["role"] == "system":
        system = None
    messages = [{"role": "system", "content": system}] if system else []
    shown = [*messages, *before, {"role": "user", "content": observation}]
    return with_pictures(shown, observation, info), tools


def later(
    observation: str, info: Mapping[str, Any], tools: Sequence[dict[str, Any]] | None
) -> list[Message]:
    """Return the messages that show a later observation.

    Args:
        observation: Its text.
        info: The environment's info: ``tool_results``.
        tools: The tools that the template presents; if None, results are text.
    """
    results = info.get("tool_results")
    shown = [{"role": "user", "content": observation}]
    if tools and results:
        shown = [{"role": "tool", **result} for result in results]
    return with_pictures(shown, observation, info)


def template_tool_format(render: Callable[..., str]) -> str | None:
    """Return the chat template's format of tool calls; None if it cannot serve tools.

    Args:
        render: Function that renders messages and ``tools``; raises TemplateError if
            the template fails.
    """
    opened = [{"role": "user", "content": _USER}]
    dialogue = [*opened, {"role": "assistant", "content": _REPLY}]
    results = [{"role": "tool", "name": _NAME, "content": r} for r in _RESULTS]
    try:
        first = render(opened, tools=[_SCHEMA])
        shown = render([*dialogue, *results], tools=[_SCHEMA])
        plain = render([*dialogue, *results])
    except TemplateError:
        return None
    # Later prompts are deltas: what was rendered before must not change.
    if _NAME not in first or not shown.startswith(first + _REPLY):
        return None
    # The delta after a reply must not depend on the tools: it is rendered without them.
    tail = shown.split(_REPLY, 1)[1]
    if tail != plain.split(_REPLY, 1)[-1] or any(tail.count(r) != 1 for r in _RESULTS):
        return None
    written = _written_call(render, opened)
    if _HERMES.search(written):
        return "hermes"
    return "llama3" if _LLAMA3.search(written) else None


def _written_call(render: Callable[..., str], opened: list[Message]) -> str:
    """Return a tool call as the template writes it."""
    function = {"name": _NAME, "arguments": {"value": _VALUE}}
    call = {"id": "call00001", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        return render([*opened, message], prompt=False)
    except TemplateError:
        return ""
