"""Render conversations as token *deltas* with a model's own chat template.

A turn's tokens are appended to what the engine has already seen; nothing sampled is
ever decoded and encoded again (token-in-token-out). This module knows neither RLlib
nor environments.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from rllib_llm.errors import TemplateError
from rllib_llm.types import Message

_USER = "Observation-7f3a"
_ASSISTANT = "Reply-91c4"
_SYSTEM = "System-5e20"


@dataclasses.dataclass(slots=True)
class Prompt:
    """Tokens to append before the next turn is sampled.

    Attributes:
        ids: What is new if ``extends``, else the whole prompt.
        extends: Whether the conversation's ids so far are kept.
    """

    ids: list[int]
    extends: bool


class ChatRenderer:
    """Turns messages into token ids for one tokenizer.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        history: ``"append"`` (each turn adds a delta; what was sampled stays as it
            was) or ``"rerender"`` (the template renders the whole conversation every
            turn; where it rewrites earlier turns, e.g. strips thinking, a new row
            starts and the engine prefills again).

    Raises:
        TemplateError: If the template cannot serve multi-turn conversations.
    """

    def __init__(self, tokenizer: Any, history: str = "append"):
        self.tokenizer = tokenizer
        self.history = history
        self._tail = self._check_template()
        self.end_of_turn_id = self._end_of_turn_id()
        self.supports_system = self._supports_system()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a turn: the template's end of turn, and the eos token."""
        return tuple(sorted({self.end_of_turn_id, self.tokenizer.eos_token_id}))

    def first(self, messages: list[Message]) -> list[int]:
        """Return the ids of a conversation's opening, ready for the first turn."""
        return self._encode(self._render(self._fold_system(messages)))

    def delta(self, observation: str, *, last_sampled_id: int | None) -> list[int]:
        """Return what to append after a sampled turn to show the next observation.

        Args:
            observation: Text of the next user message.
            last_sampled_id: Last id of the sampled turn. If it is not the end of turn
                (the turn was cut at ``max_new_tokens``), the end of turn is supplied
                here, as a prompt token that is not trained.
        """
        text = self._after_reply(observation)
        if last_sampled_id == self.end_of_turn_id:
            text = text[len(self.tokenizer.decode([self.end_of_turn_id])) :]
        return self._encode(text)

    def next(
        self, messages: list[Message], ids_so_far: list[int], *, last_sampled_id: int
    ) -> Prompt:
        """Return the prompt of a later turn.

        Args:
            messages: The conversation, ending in the observation to show.
            ids_so_far: Everything the engine has seen and sampled.
            last_sampled_id: Last id of the previous sampled turn.
        """
        if self.history == "append":
            ids = self.delta(
                messages[-1]["content"], last_sampled_id=last_sampled_id
            )
            return Prompt(ids, extends=True)
        ids = self.first(messages)
        if ids[: len(ids_so_far)] == ids_so_far:
            return Prompt(ids[len(ids_so_far) :], extends=True)
        return Prompt(ids, extends=False)

    def decode(self, ids: list[int]) -> str:
        """Return the text of a sampled turn, its end-of-turn token removed."""
        ids = list(ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def encode_reply(self, text: str) -> list[int]:
        """Return the ids of a demonstrated turn, end of turn included."""
        return [*self._encode(text), self.end_of_turn_id]

    # Template ----------------------------------------------------------------------

    def _render(self, messages: list[Message], *, prompt: bool = True) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt
            )
        except Exception as error:  # jinja raises whatever the template raises
            raise TemplateError(
                f"The chat template of {type(self.tokenizer).__name__} failed on the "
                f"roles {[m['role'] for m in messages]}: {error}"
            ) from error

    def _encode(self, text: str) -> list[int]:
        # The template writes bos and the like itself.
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _after_reply(self, observation: str) -> str:
        text = self._render(
            [
                {"role": "user", "content": _USER},
                {"role": "assistant", "content": _ASSISTANT},
                {"role": "user", "content": observation},
            ]
        )
        return text.split(_ASSISTANT, 1)[1]

    def _check_template(self) -> str:
        """Find what follows a reply, and name what is wrong with the template."""
        opening = self._render([{"role": "user", "content": _USER}])
        bare = self._render([{"role": "user", "content": _USER}], prompt=False)
        if opening == bare:
            raise TemplateError(
                "The chat template ignores add_generation_prompt, so the model would "
                "not know that it is its turn. Add a generation prompt to it."
            )
        full = self._render(
            [
                {"role": "user", "content": _USER},
                {"role": "assistant", "content": _ASSISTANT},
                {"role": "user", "content": _USER + "2"},
            ]
        )
        if full.count(_ASSISTANT) != 1 or _USER + "2" not in full:
            raise TemplateError(
                "The chat template drops or repeats earlier turns: a conversation of "
                f"user, assistant, user was rendered as {full!r}."
            )
        tail = full.split(_ASSISTANT, 1)[1]
        if opening + _ASSISTANT + tail != full and self.history == "append":
            warnings.warn(
                "The chat template rewrites earlier turns: opening + reply + delta "
                f"is {opening + _ASSISTANT + tail!r}, the template renders {full!r}. "
                "With history='append' the model keeps seeing what it sampled (usual "
                "for RL); history='rerender' follows the template and starts a new "
                "row where it rewrites.",
                stacklevel=3,
            )
        return tail

    def _end_of_turn_id(self) -> int:
        ids = self._encode(self._tail)
        first = ids[0] if ids else None
        special = {
            *self.tokenizer.all_special_ids,
            *self.tokenizer.added_tokens_decoder,
        }
        if first not in special:
            raise TemplateError(
                "The chat template does not end a reply with a special token but with "
                f"{self._tail[:20]!r}, so the end of a turn cannot be sampled. Let it "
                "write the eos token after each assistant message."
            )
        return first

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
