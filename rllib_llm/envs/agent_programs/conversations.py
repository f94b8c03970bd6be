"""Assignment of requests to conversations, by the messages they repeat."""

from __future__ import annotations

import dataclasses
import json

from rllib_llm.data.model_calls import ChatMessage, ModelReply, ModelRequest
from rllib_llm.openai_api.requests import ParsedCall


@dataclasses.dataclass(slots=True)
class Conversation:
    """A conversation as a program sees it.

    Attributes:
        number: Its number among those with the policy.
        tools: Its tools, as a JSON text.
        messages: The messages, the last reply included.
        ids: Token ids, prompts and replies, of a conversation without messages.
        context: Number of its tokens.
        last_id: Last of them.
    """

    number: int
    tools: str
    messages: tuple[ChatMessage, ...] = ()
    ids: tuple[int, ...] = ()
    context: int = 0
    last_id: int | None = None


class Conversations:
    """Conversations of a program with one policy.

    A request continues a conversation if it repeats all of its messages as they were,
    the last reply included, and adds some. Any other request starts one: a sub-agent's,
    a rewritten one, and one that branches from an earlier message.
    """

    def __init__(self) -> None:
        self._all: list[Conversation] = []
        # Replies as they were sampled, for conversations that repeat them.
        self._sampled: dict[ChatMessage, str] = {}

    def __len__(self) -> int:
        """Return the number of conversations so far."""
        return len(self._all)

    def place(self, call: ParsedCall, sample: int) -> tuple[Conversation, ModelRequest]:
        """Return the conversation of a request, and the request for its next turn.

        Args:
            call: The request.
            sample: Number of the reply among those to the request.
        """
        tools = json.dumps(call.tools, sort_keys=True) if call.tools else ""
        # The first reply continues. It is then part of the conversation, which the
        # others do not repeat: they start one each.
        conversation = self._continued(call, tools)
        continues = conversation is not None
        if conversation is None:
            conversation = Conversation(len(self._all), tools)
            self._all.append(conversation)
        messages = call.messages[len(conversation.messages) :]
        prompt = call.prompt
        if isinstance(prompt, tuple):
            prompt = prompt[len(conversation.ids) :]
        request = ModelRequest(
            messages=messages if continues else tuple(map(self._as_sampled, messages)),
            conversation=conversation.number,
            continues=continues,
            tools=call.tools,
            prompt=prompt,
            max_tokens=call.max_tokens,
            stop=call.stop,
            seed=call.seed,
            sample=sample,
            wants_token_texts=call.logprobs,
        )
        return conversation, request

    def discard(self, conversation: Conversation) -> None:
        """Remove the newest conversation, which was refused before its first turn."""
        if conversation.context == 0:
            self._all.remove(conversation)

    def complete(
        self,
        conversation: Conversation,
        call: ParsedCall,
        reply: ModelReply,
        message: ChatMessage,
    ) -> None:
        """Append a request and its reply to a conversation.

        Args:
            conversation: That of the request.
            call: The request.
            reply: The reply.
            message: The reply as the program receives it.
        """
        ids = tuple(int(i) for i in reply.token_ids)
        if isinstance(call.prompt, tuple):
            conversation.ids = call.prompt + ids
        elif call.is_chat:
            conversation.messages = (*call.messages, message)
            self._sampled[message] = reply.raw_text
        conversation.context = max(1, reply.prompt_tokens + len(ids))
        conversation.last_id = ids[-1] if ids else None

    def _continued(self, call: ParsedCall, tools: str) -> Conversation | None:
        candidates = [c for c in self._all if c.tools == tools and _repeats(call, c)]
        # The longest: one conversation may begin like another.
        return max(
            candidates, key=lambda c: (len(c.messages), len(c.ids)), default=None
        )

    def _as_sampled(self, message: ChatMessage) -> ChatMessage:
        raw_text = self._sampled.get(message)
        return message if raw_text is None else ChatMessage("assistant", raw_text)


def _repeats(call: ParsedCall, conversation: Conversation) -> bool:
    """Return whether a request repeats a conversation and adds to it."""
    if isinstance(call.prompt, str):
        return False  # texts do not tell their tokens
    if isinstance(call.prompt, tuple):
        count = len(conversation.ids)
        begins_alike = call.prompt[:count] == conversation.ids
        return 0 < count < len(call.prompt) and begins_alike
    count = len(conversation.messages)
    if not 0 < count < len(call.messages) or conversation.messages != tuple(
        call.messages[:count]
    ):
        return False
    # Replies that the policy did not sample cannot be part of a continued row's delta.
    return all(m.role != "assistant" for m in call.messages[count:])
