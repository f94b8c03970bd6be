"""Prompts of the requests that a program makes, and the replies to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data.episode_data import EpisodeData
from rllib_llm.data.model_calls import ChatMessage, ModelReply, ModelRequest
from rllib_llm.data.types import FinishReason, Message, Prompt
from rllib_llm.errors import ConfigError, RLlibLLMError
from rllib_llm.tools.formats import FORMATS, load_arguments, text_format
from rllib_llm.transcripts.token_texts import token_texts

if TYPE_CHECKING:
    from rllib_llm.connectors.chat import ChatRenderer

Tools = Sequence[dict[str, Any]] | None


class PromptTooLongError(RLlibLLMError, ValueError):
    """A request leaves no room for a reply in the policy's context.

    Attributes:
        code: The error's name in OpenAI's API.
    """

    code = "context_length_exceeded"


def requested_prompt(
    data: EpisodeData,
    request: ModelRequest,
    renderer: ChatRenderer | None,
    system: str | None,
) -> Prompt | None:
    """Return the prompt of a request, and make its conversation the current one.

    Args:
        data: State of the agent's conversations; messages and tools are written.
        request: The request.
        renderer: The ChatRenderer of the policy; None for a policy that reads text.
        system: System message of the policy, for conversations that begin without one.
    """
    data.request = request
    data.enter_conversation(request.conversation)
    if request.prompt is not None:
        text = request.prompt if isinstance(request.prompt, str) else ""
        data.messages.append({"role": "user", "content": text})
        if renderer is None:
            return None
        # A new conversation has no ids, which any prompt extends.
        return Prompt(prompt_ids(request.prompt, renderer), extends=True)
    messages, tools = shown_messages(request, renderer, system)
    if request.continues:
        data.messages += messages
        if renderer is None:
            return None
        return renderer.next(
            data.messages, data.ids, last_sampled_id=data.ids[-1], tools=data.tools
        )
    data.messages, data.tools = messages, tools
    if renderer is None:
        return None
    return Prompt(renderer.first(messages, tools), extends=True)


def prompt_ids(prompt: str | tuple[int, ...], renderer: ChatRenderer) -> list[int]:
    """Return the ids of a prompt without messages.

    Control tokens in a text are read as such, because the program writes the whole
    prompt, the template's part included.
    """
    if isinstance(prompt, str):
        return list(renderer.tokenizer.encode(prompt, add_special_tokens=False))
    return list(prompt)


def shown_messages(
    request: ModelRequest, renderer: ChatRenderer | None, system: str | None
) -> tuple[list[Message], Tools]:
    """Return the messages of a request as a chat template gets them, and its tools.

    If the template cannot present tools, the first user message describes them, and
    their results are user messages.
    """
    tools = request.tools or None
    presented = tools if renderer is not None and renderer.tool_format else None
    call_format = renderer.tool_format if renderer is not None and presented else None
    messages = _as_template_messages(request.messages, tools, call_format)
    if request.continues:
        return messages, presented
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    if tools and not presented:
        described = text_format(tools).describe(tools)
        users = (i for i, m in enumerate(messages) if m["role"] == "user")
        index = next(users, 0)
        content = f"{described}\n\n{messages[index]['content']}"
        messages[index] = {**messages[index], "content": content}
    return messages, presented


def _as_template_messages(
    given: Sequence[ChatMessage], tools: Tools, call_format: str | None
) -> list[Message]:
    messages: list[Message] = []
    results: list[str] = []  # of tools, that one user message will show
    for message in given:
        if message.role == "tool" and call_format is None:
            results.append(message.content)
            continue
        _flush(results, messages, tools)
        content = message.content
        if message.tool_calls:
            content = _with_calls(message, tools, call_format)
        shown = {"role": message.role, "content": content}
        if message.role == "tool":
            shown["name"] = message.name
        messages.append(shown)
    _flush(results, messages, tools)
    return messages


def _flush(results: list[str], messages: list[Message], tools: Tools) -> None:
    if results:
        text = text_format(tools or ()).results(results)
        messages.append({"role": "user", "content": text})
        results.clear()


def _with_calls(message: ChatMessage, tools: Tools, call_format: str | None) -> str:
    """Return the text of an assistant's message that the policy did not sample."""
    schemas = tools or ()
    tool_format = FORMATS[call_format] if call_format else text_format(schemas)
    parameters = {s["function"]["name"]: s["function"]["parameters"] for s in schemas}
    calls = [
        tool_format.write(
            call.name, load_arguments(call.arguments), parameters.get(call.name, {})
        )
        for call in message.tool_calls
    ]
    return "\n".join([*filter(None, [message.content]), *calls])


def reply_to(
    data: EpisodeData, renderer: ChatRenderer, raw_text: str, text: str
) -> ModelReply:
    """Return the reply to the request whose turn was sampled last.

    Args:
        data: State of the agent's conversations.
        renderer: The policy's renderer.
        raw_text: Text of the turn.
        text: The same without thinking.
    """
    request = data.request
    assert request is not None and data.sampled is not None
    assert data.sampled_logps is not None and data.last_finish is not None
    texts: tuple[str, ...] = ()
    if request.wants_token_texts:
        texts = tuple(token_texts(renderer.tokenizer, data.sampled))
    return ModelReply(
        text=shown_reply(request, raw_text, text, data.last_finish),
        raw_text=raw_text,
        finish=data.last_finish,
        prompt_tokens=len(data.ids) - len(data.sampled),
        token_ids=np.asarray(data.sampled, np.int32),
        logps=data.sampled_logps,
        token_texts=texts,
    )


def shown_reply(
    request: ModelRequest, raw_text: str, text: str, finish: FinishReason
) -> str:
    """Return the text of a reply without the stop string that ended it.

    Args:
        request: The request.
        raw_text: Text of the turn, which completions without messages show.
        text: The same without thinking.
        finish: Reason that the turn ended.
    """
    shown = raw_text if request.prompt is not None else text
    starts = [shown.find(stop) for stop in request.stop if stop in shown]
    return shown[: min(starts)] if starts and finish is FinishReason.STOP else shown


@dataclasses.dataclass(frozen=True)
class ServedPolicy:
    """A policy as programs see it: its limits, and a check of their requests.

    Attributes:
        renderer: The policy's renderer; None for a policy that reads text.
        max_context_tokens: Maximum tokens of a conversation.
        temperature: Temperature of the training run.
        top_p: Its ``top_p``.
        system: System message of the policy.
    """

    renderer: ChatRenderer | None
    max_context_tokens: int
    temperature: float
    top_p: float
    system: str | None = None

    def prompt(self, request: ModelRequest) -> list[int]:
        """Return the ids of a whole conversation, or of a text to complete.

        Args:
            request: The request, which continues no conversation.

        Raises:
            PromptTooLongError: If the context cannot hold it.
            RLlibLLMError: If the chat template refuses it.
        """
        assert self.renderer is not None, "The policy is no language model."
        self._check_length(self._least_tokens(request, self.renderer))
        ids = self._ids(request, self.renderer, None)
        self._check_length(len(ids))
        return ids

    def check(self, request: ModelRequest, context: int, last_id: int | None) -> None:
        """Check that a request can be rendered and leaves room for a reply.

        Args:
            request: The request.
            context: Tokens of the conversation that it continues.
            last_id: Last of these tokens.

        Raises:
            PromptTooLongError: If the context cannot hold it.
            RLlibLLMError: If the chat template refuses it.
        """
        if self.renderer is None:
            return
        self._check_length(self._least_tokens(request, self.renderer) + context)
        ids = self._ids(request, self.renderer, last_id)
        self._check_length(context + len(ids))

    def _check_length(self, length: int) -> None:
        if length + 1 > self.max_context_tokens:
            raise PromptTooLongError(
                f"The conversation has at least {length} tokens, but the policy's "
                f"context has {self.max_context_tokens} and must hold the reply, too. "
                "Shorten the messages, or raise generation.max_context_tokens."
            )

    def _least_tokens(self, request: ModelRequest, renderer: ChatRenderer) -> int:
        """Return a lower bound that costs no encoding, because requests may be huge."""
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        chars = sum(len(message.content) for message in request.messages)
        chars += len(request.prompt or "")
        return chars // renderer.longest_token

    def _ids(
        self, request: ModelRequest, renderer: ChatRenderer, last_id: int | None
    ) -> list[int]:
        if request.prompt is not None:
            ids = prompt_ids(request.prompt, renderer)
            wrong = [i for i in ids if not 0 <= i < renderer.vocabulary]
            if wrong:
                raise ConfigError(
                    f"The prompt has the token id {wrong[0]}; ids are below "
                    f"{renderer.vocabulary}. Encode it with the policy's tokenizer."
                )
            return ids
        messages, tools = shown_messages(request, renderer, self.system)
        if request.continues:
            return renderer.delta(messages, last_sampled_id=last_id)
        return renderer.first(messages, tools)
