"""Responses in the form of OpenAI's API."""

from __future__ import annotations

import dataclasses
import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from rllib_llm.data.model_calls import ChatMessage, ModelReply, ToolCall
from rllib_llm.data.types import FinishReason
from rllib_llm.openai_api.request_fields import RequestError
from rllib_llm.openai_api.requests import ParsedCall
from rllib_llm.tools.formats import find_calls

_HERMES = re.compile(r"<tool_call>.*?</tool_call>\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A reply as the program receives it.

    Attributes:
        message: The assistant's message.
        reply: The policy's reply.
    """

    message: ChatMessage
    reply: ModelReply

    @property
    def finish_reason(self) -> str:
        """Reason in the words of OpenAI's API."""
        if self.message.tool_calls:
            return "tool_calls"
        return "length" if self.reply.finish is FinishReason.LENGTH else "stop"


def choice_of(call: ParsedCall, reply: ModelReply) -> Choice:
    """Return a reply as a message, with the tool calls that it holds.

    Malformed calls stay in the text, so that the program may answer them.
    """
    schemas = call.tools or ()
    parsed = find_calls(reply.text, schemas, "auto") if schemas else []
    valid = [each for each in parsed if each.problem is None and each.name]
    if not valid or len(valid) < len(parsed):
        return Choice(ChatMessage("assistant", reply.text), reply)
    calls = tuple(
        ToolCall(
            f"call_{uuid.uuid4().hex[:24]}",
            each.name,
            json.dumps(each.arguments, sort_keys=True, ensure_ascii=False),
        )
        for each in valid
    )
    content = _without_calls(reply.text, [each.name for each in valid])
    return Choice(ChatMessage("assistant", content, calls), reply)


def _without_calls(text: str, names: Sequence[str]) -> str:
    if "<tool_call>" in text:
        return _HERMES.sub("", text).strip()
    tags = "|".join(map(re.escape, set(names)))
    rest, count = re.subn(rf"<({tags})>.*?</\1>", "", text, flags=re.DOTALL)
    # The other format, JSON, is the whole text.
    return rest.strip() if count else ""


def response(call: ParsedCall, choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the body of a response that is not streamed."""
    rendered = []
    for index, choice in enumerate(choices):
        content = (
            {"message": _message(choice.message)}
            if call.is_chat
            else {"text": choice.message.content}
        )
        rendered.append(
            {
                "index": index,
                **content,
                "finish_reason": choice.finish_reason,
                "logprobs": _logprobs(call, choice),
                **_ids(call, choice),
            }
        )
    return {**_head(call, False), "choices": rendered, "usage": usage(choices)}


def chunks(call: ParsedCall, choices: Sequence[Choice]) -> Iterator[bytes]:
    """Yield the events of a streamed response whose replies are complete."""
    events = Events(call)
    for index, choice in enumerate(choices):
        yield from events.whole(index, choice)
    yield from events.end(choices)


class Events:
    """Server-sent events of one response.

    Args:
        call: The request.
    """

    def __init__(self, call: ParsedCall):
        self._call, self._head = call, _head(call, True)

    def opening(self, index: int) -> bytes:
        """Return the event that begins a choice of a chat."""
        return self._event(index, {"delta": {"role": "assistant", "content": ""}})

    def text(self, index: int, text: str) -> bytes:
        """Return the event of a part of a choice's text."""
        part = {"delta": {"content": text}} if self._call.is_chat else {"text": text}
        return self._event(index, {**part, "logprobs": None})

    def finish(self, index: int, reason: str) -> bytes:
        """Return the event that ends a choice."""
        part: dict[str, Any] = {"delta": {}} if self._call.is_chat else {"text": ""}
        return self._event(index, {**part, "finish_reason": reason})

    def whole(self, index: int, choice: Choice) -> Iterator[bytes]:
        """Yield the events of a complete choice, whose text is one of them."""
        logprobs, ids = _logprobs(self._call, choice), _ids(self._call, choice)
        if self._call.is_chat:
            yield self.opening(index)
            delta = _message(choice.message)
            for number, each in enumerate(delta.get("tool_calls", ())):
                each["index"] = number
            yield self._event(index, {"delta": delta, "logprobs": logprobs, **ids})
        else:
            part = {"text": choice.message.content, "logprobs": logprobs, **ids}
            yield self._event(index, part)
        yield self.finish(index, choice.finish_reason)

    def end(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        """Yield the events after the last choice."""
        if self._call.include_usage:
            yield _event({**self._head, "choices": [], "usage": usage(choices)})
        yield b"data: [DONE]\n\n"

    def error(self, error: RequestError) -> bytes:
        """Return the event of an error after the first event."""
        return _event(error.body())

    def _event(self, index: int, part: dict[str, Any]) -> bytes:
        shown = {"index": index, "finish_reason": None, **part}
        return _event({**self._head, "choices": [shown]})


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    """Return the numbers of tokens; a prompt counts once for all its replies."""
    prompt = choices[0].reply.prompt_tokens
    replies = [choice.reply for choice in choices]
    completion = sum(len(r.token_ids) + r.inner_tokens for r in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def models(names: Sequence[str]) -> dict[str, Any]:
    """Return the body of ``/v1/models``."""
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    """Return the description of one model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "rllib_llm"}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _head(call: ParsedCall, stream: bool) -> dict[str, Any]:
    kind = "text_completion"
    if call.is_chat:
        kind = "chat.completion.chunk" if stream else "chat.completion"
    name = "chatcmpl" if call.is_chat else "cmpl"
    return {
        "id": f"{name}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": call.model,
    }


def _message(message: ChatMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        shown["content"] = message.content or None
        shown["tool_calls"] = [
            {
                "id": each.call_id,
                "type": "function",
                "function": {"name": each.name, "arguments": each.arguments},
            }
            for each in message.tool_calls
        ]
    return shown


def _ids(call: ParsedCall, choice: Choice) -> dict[str, Any]:
    return {"token_ids": choice.reply.token_ids.tolist()} if call.token_ids else {}


def _logprobs(call: ParsedCall, choice: Choice) -> dict[str, Any] | None:
    if not call.logprobs:
        return None
    texts = list(choice.reply.token_texts)
    values = [float(value) for value in choice.reply.logps]
    if not call.is_chat:
        offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": None,
            "text_offset": offsets,
        }
    content = [
        {
            "token": text,
            "logprob": value,
            "bytes": list(text.encode(errors="replace")),
            "top_logprobs": [],
        }
        for text, value in zip(texts, values, strict=True)
    ]
    return {"content": content, "refusal": None}
