"""Rendering of conversations as token *deltas* with a model's chat template.

A turn's tokens are appended to those the engine has; sampled ids are never decoded and
encoded again (token-in-token-out). This module uses neither RLlib nor environments.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.connectors.control_tokens import ControlTokens
from rllib_llm.connectors.tool_prompts import template_tool_format
from rllib_llm.data.types import Message, Prompt
from rllib_llm.errors import TemplateError
from rllib_llm.pictures.contract import IMAGES, PLACEHOLDER
from rllib_llm.pictures.placement import located
from rllib_llm.pictures.templates import as_parts, writes_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rllib_llm.pictures.spec import ImageSpec

# Texts that no template contains, to locate the parts of what it renders.
_USER = "Observation-7f3a"
_USER_2 = "Answer-b6d9"
_ASSISTANT = "Reply-91c4"
_SYSTEM = "System-5e20"
_THOUGHT = "<think>\nThought-2d8b\n</think>\n\n"
_OTHERS = ("user", "tool")  # roles of messages that no policy of the run writes
_CACHES = ("_first_ids", "_delta_ids", "_reply_ids")
_CACHED_TEXTS = 512


class ChatRenderer:
    """Renderer of messages as token ids, for one tokenizer.

    An observation that contains a control token's name (``<|im_end|>``) is encoded as
    plain text, so that no environment can end a turn or write in another role. Control
    tokens are those the tokenizer declares special and those the template writes.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        history: ``"append"`` (each turn adds a delta; sampled tokens stay as they are),
            ``"rerender"`` (the template renders the whole conversation every turn;
            where it rewrites earlier turns, e.g. strips thinking, a new row starts and
            the engine prefills again) or ``"latest"`` (each turn shows the system
            message and the newest observation only, in a row of its own).
        template_kwargs: Passed to the template, e.g. ``{"enable_thinking": False}``.
        pictures: Picture inputs of the model; None: it reads text alone.

    Attributes:
        end_of_turn_id: The special token that the template writes after a reply.
        stop_token_ids: Ids that end a turn: the end of turn, and the eos token.
        supports_system: Whether the template has a system role; if not, the system
            message is put in front of the first user message.
        rewrites: How the template changes earlier turns, or None if it keeps them.

    Raises:
        TemplateError: If the template cannot serve multi-turn conversations.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        history: str = "append",
        template_kwargs: dict[str, Any] | None = None,
        pictures: ImageSpec | None = None,
    ):
        self.tokenizer = tokenizer
        self.history, self.pictures = history, pictures
        self._writes_parts = writes_parts(tokenizer)
        self.template_kwargs = dict(template_kwargs or {})
        self._gap = ""
        self._controls = ControlTokens(tokenizer)
        tail = self._check_template()
        self.end_of_turn_id = self._find_end_of_turn(tail)
        ends = {self.end_of_turn_id, tokenizer.eos_token_id} - {None}
        self.stop_token_ids: tuple[int, ...] = tuple(sorted(ends))
        self.supports_system = self._supports_system()
        self.rewrites = self._find_rewriting()
        if self.rewrites and history == "append":
            warnings.warn(
                f"{self.rewrites} With history='append' the model keeps seeing what it "
                "sampled (usual for RL); history='rerender' follows the template and "
                "starts a new row where it rewrites.",
                stacklevel=2,
            )
        self._controls = ControlTokens(
            tokenizer,
            self._control_names(),
            None if pictures is None else pictures.expand(),
        )
        self._add_caches()

    def _add_caches(self) -> None:
        # Rollouts of a group share their first prompt, and often later ones.
        self._first_ids = functools.lru_cache(_CACHED_TEXTS)(self._encode)
        self._delta_ids = functools.lru_cache(_CACHED_TEXTS)(
            lambda *news: self._encode(self._after_reply([dict(m) for m in news]))
        )
        self._reply_ids = functools.lru_cache(_CACHED_TEXTS)(self._encode_reply)

    @functools.cached_property
    def tool_format(self) -> str | None:
        """The template's format of tool calls: "hermes" or "llama3".

        None if it writes another format, cannot list tools, or cannot show results in
        the role ``tool`` without changing the text before them.
        """
        return template_tool_format(self._render)

    @functools.cached_property
    def vocabulary(self) -> int:
        """Size of the vocabulary: one more than the highest id of the tokenizer."""
        return 1 + max(self.tokenizer.get_vocab().values())

    @functools.cached_property
    def longest_token(self) -> int:
        """Length of the longest token, in characters of the vocabulary."""
        return max(map(len, self.tokenizer.get_vocab()))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the caches, which cannot be pickled."""
        return {k: v for k, v in vars(self).items() if k not in _CACHES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state with empty caches."""
        vars(self).update(state)
        self._add_caches()

    def first(
        self, messages: list[Message], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Return the ids of a conversation's opening, ready for the first turn.

        Args:
            messages: The opening.
            tools: JSON schemas of the tools that the template presents.
        """
        text = self._render(self._fold_system(messages), tools=tools)
        return list(self._first_ids(text))

    def delta(
        self, observation: str | list[Message], *, last_sampled_id: int | None
    ) -> list[int]:
        """Return the tokens that show the next observation after a sampled turn.

        Args:
            observation: Text of the next user message, or messages (results of tools).
            last_sampled_id: Last id of the sampled turn. If it is not the end of turn
                (the turn was cut at ``max_new_tokens``), the delta begins with the end
                of turn, as a prompt token that is not trained.
        """
        if isinstance(observation, str):
            observation = [{"role": "user", "content": observation}]
        ids = self._delta_ids(*(tuple(m.items()) for m in observation))
        # Cut ids, not text: the text after a special token may be encoded differently
        # without it (some tokens absorb the white space after them).
        if last_sampled_id == self.end_of_turn_id:
            return ids[ids.index(self.end_of_turn_id) + 1 :]
        return list(ids)

    def next(
        self,
        messages: list[Message],
        ids_so_far: list[int],
        *,
        last_sampled_id: int,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> Prompt:
        """Return the prompt of a later turn.

        Args:
            messages: The conversation, ending in the observation to show.
            ids_so_far: All ids that the engine has seen and sampled.
            last_sampled_id: Last id of the previous sampled turn.
            tools: As in the first prompt.
        """
        if self.history == "append":
            news = _newest(messages)
            ids = self.delta(news, last_sampled_id=last_sampled_id)
            return self._placed(ids, news, extends=True)
        if self.history == "latest":
            system = [m for m in messages[:1] if m["role"] == "system"]
            shown = [*system, *_newest(messages)]
            return self._placed(self.first(shown, tools), shown, extends=False)
        text = self._render(self._fold_system(messages), tools=tools)
        ids = self._encode(text)
        if ids[: len(ids_so_far)] == ids_so_far:
            return Prompt(ids[len(ids_so_far) :], extends=True)
        # Equal text in other tokens is not a rewrite: keep the sampled tokens.
        seen = self._decode(ids_so_far)
        if self._controls.spell_out(text).startswith(seen):
            rest = text[self._controls.marked_length(text, len(seen)) :]
            added = self._encode_after(last_sampled_id, rest)
            return Prompt(added, extends=True)
        return Prompt(ids, extends=False)

    def opened(
        self, messages: list[Message], tools: Sequence[dict[str, Any]] | None = None
    ) -> Prompt:
        """Return the prompt of the first turn; see :meth:`first`."""
        return self._placed(self.first(messages, tools), messages, extends=True)

    def again(
        self, messages: list[Message], tools: Sequence[dict[str, Any]] | None = None
    ) -> Prompt:
        """Return the prompt of a conversation whose earlier messages were changed.

        It keeps no token of before, so that its turn begins a new row.
        """
        if self.history == "latest":
            shown = [*(m for m in messages[:1] if m["role"] == "system")]
            messages = [*shown, *_newest(messages)]
        return self._placed(self.first(messages, tools), messages, extends=False)

    def _placed(
        self, ids: list[int], messages: list[Message], *, extends: bool
    ) -> Prompt:
        """Return a prompt with the places of its messages' pictures."""
        spec = self.pictures
        token, count = (None, 0) if spec is None else (spec.token_id, spec.count)
        return Prompt(ids, extends, located(ids, messages, token, count))

    def conversation(
        self, messages: list[Message], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Return the ids of a finished conversation, for models that score it.

        The names of control tokens are plain text in replies, too: a policy must not
        write messages of another role into what is scored.
        """
        text = self._render(
            self._fold_system(messages),
            prompt=False,
            tools=tools,
            plain=(*_OTHERS, "assistant"),
        )
        return self._encode(text)

    def closing(self, last_sampled_id: int) -> list[int]:
        """Return the tokens that the template writes after the last reply."""
        user, reply = ({"role": "user", "content": _USER}, _ASSISTANT)
        shown = [user, {"role": "assistant", "content": reply}]
        text = self._render(shown, prompt=False)
        ids, end = self._encode(text.split(reply, 1)[1]), self.end_of_turn_id
        return ids[ids.index(end) + 1 :] if last_sampled_id == end in ids else ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of a sampled turn.

        The end-of-turn token and the space that the template writes before every reply
        are removed.
        """
        ids = list(ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._decode(ids).removeprefix(self._gap)

    def encode_reply(self, text: str) -> list[int]:
        """Return the ids of a demonstrated turn, end of turn included.

        They are those of the reply within a conversation: a text by itself may be
        tokenised differently, e.g. with a space before its first word.
        """
        return [*self._reply_ids(text), self.end_of_turn_id]

    def _encode_reply(self, text: str) -> list[int]:
        opening, reply = self._opening(), self._gap + self._controls.clean(text)
        before, ids = self._encode(opening), self._encode(opening + reply)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        return self._encode(reply)  # a token would span the end of the prompt

    # Template ----------------------------------------------------------------------

    def _render(
        self,
        messages: list[Message],
        *,
        prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        plain: Sequence[str] = _OTHERS,
    ) -> str:
        """Return the template's text, with marks for control tokens in user texts.

        Args:
            messages: The conversation.
            prompt: Whether the opening of the next reply follows.
            tools: JSON schemas of tools.
            plain: Roles in whose messages control tokens' names are plain text.
        """
        extra = dict(self.template_kwargs)
        if tools:
            extra["tools"] = self._mark_tools(tools)
        marked = [self._mark(m, plain) for m in messages]
        try:
            return self.tokenizer.apply_chat_template(
                [as_parts(m, self._writes_parts) for m in marked],
                tokenize=False,
                add_generation_prompt=prompt,
                **extra,
            )
        except Exception as error:  # jinja passes any exception of the template on
            raise TemplateError(
                f"The chat template of {type(self.tokenizer).__name__} failed on the "
                f"roles {[m['role'] for m in messages]}: {error}"
            ) from error

    def _encode(self, text: str) -> list[int]:
        return self._controls.encode(text)

    def _encode_after(self, last_id: int, text: str) -> list[int]:
        """Return the ids of ``text`` when it follows the token ``last_id``."""
        if last_id not in self.stop_token_ids:
            return self._encode(text)
        ids = self._encode(self._decode([last_id]) + text)
        return ids[ids.index(last_id) + 1 :]

    def _decode(self, ids: list[int]) -> str:
        # Cleaning up would remove sampled spaces.
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    # Control tokens in observations --------------------------------------------------

    def _mark(self, message: Message, plain: Sequence[str]) -> Message:
        """Return the message with marks for control tokens that it contains."""
        content = self._controls.clean(message["content"])
        # Each placeholder is a picture's: the number of both was checked.
        parts = content.split(PLACEHOLDER) if message.get(IMAGES) else [content]
        if message["role"] in plain:
            parts = [self._controls.mark(part) for part in parts]
        return {**message, "content": self._controls.picture_mark.join(parts)}

    def _mark_tools(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the tools marked likewise: their descriptions may be untrusted."""
        text = self._controls.clean(json.dumps(list(tools), ensure_ascii=False))
        return json.loads(self._controls.mark(text))

    def _control_names(self) -> set[str]:
        added = self.tokenizer.added_tokens_decoder.values()
        dialogue = self._dialogue(_ASSISTANT)
        names = {t.content for t in added if t.special and t.content in dialogue}
        names |= set(self.tokenizer.all_special_tokens)
        return names if self.pictures is None else names | self.pictures.tokens

    # Probes of the template ----------------------------------------------------------

    def _after_reply(self, news: list[Message]) -> str:
        return self._dialogue(_ASSISTANT, news).split(_ASSISTANT, 1)[1]

    def _dialogue(self, reply: str, news: list[Message] | None = None) -> str:
        return self._render(
            [
                {"role": "user", "content": _USER},
                {"role": "assistant", "content": reply},
                *(news or [{"role": "user", "content": _USER_2}]),
            ]
        )

    def _check_template(self) -> str:
        """Return the text after a reply, or raise what is wrong with the template.

        Sets the white space that the template writes between opening and reply.
        """
        opening = self._opening()
        bare = self._render([{"role": "user", "content": _USER}], prompt=False)
        full = self._dialogue(_ASSISTANT)
        before = full.partition(_ASSISTANT)[0]
        # Some templates need no generation prompt: the end of a user message opens a
        # reply.
        if opening == bare and before.rstrip() != opening.rstrip():
            raise TemplateError(
                "The chat template ignores add_generation_prompt, so the model cannot "
                "tell that its turn has come. Add a generation prompt to the template."
            )
        if before.startswith(opening) and before.rstrip() == opening.rstrip():
            self._gap = before[len(opening) :]
        if [full.count(t) for t in (_USER, _ASSISTANT, _USER_2)] != [1, 1, 1]:
            raise TemplateError(
                "The chat template drops or repeats earlier turns: a conversation of "
                f"user, assistant, user was rendered as {full!r}. Use a template that "
                "writes every message once."
            )
        return full.split(_ASSISTANT, 1)[1]

    def _opening(self) -> str:
        return self._render([{"role": "user", "content": _USER}])

    def _find_rewriting(self) -> str | None:
        """Return how the template changes earlier turns, None if it keeps them."""
        tail = self._after_reply([{"role": "user", "content": _USER_2}])
        for reply in (_ASSISTANT, _THOUGHT + _ASSISTANT):
            appended = self._opening() + self._gap + reply + tail
            rendered = self._dialogue(reply)
            if appended != rendered:
                return (
                    "The chat template rewrites earlier turns: opening + reply + delta "
                    f"is {appended!r}, the template renders {rendered!r}."
                )
        return None

    def _find_end_of_turn(self, tail: str) -> int:
        """Return the first special token after a reply; only spaces may precede it."""
        added = self.tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special}
        special |= set(self.tokenizer.all_special_ids)
        ids = self._encode(tail)
        count = next((n for n, i in enumerate(ids) if i in special), None)
        if count is None or self._decode(ids[:count]).strip():
            raise TemplateError(
                "The chat template ends a reply with "
                f"{tail[:20]!r} instead of a special token, so the model cannot sample "
                "the end of a turn. Let the template write the eos token after each "
                "assistant message."
            )
        return ids[count]

    def _supports_system(self) -> bool:
        try:
            text = self._render(
                [
                    {"role": "system", "content": _SYSTEM},
                    {"role": "user", "content": _USER},
                ]
            )
        except TemplateError:
            return False
        return _SYSTEM in text

    def _fold_system(self, messages: list[Message]) -> list[Message]:
        """Prepend the system message to the first user message where unsupported."""
        if self.supports_system or messages[0]["role"] != "system":
            return messages
        system, user, *rest = messages
        folded = {**user, "content": f"{system['content']}\n\n{user['content']}"}
        return [folded, *rest]


def _newest(messages: list[Message]) -> list[Message]:
    """Return the messages after the last reply."""
    replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    return messages[replies[-1] + 1 :] if replies else messages
