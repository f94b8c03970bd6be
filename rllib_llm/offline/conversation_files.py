"""Conversations, preference pairs and labels in the rows of data files."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from rllib_llm.data.types import Message
from rllib_llm.envs.dataset.dataset_rows import (
    RowError,
    joined_parts,
    place_pictures,
)
from rllib_llm.envs.dataset.picture_files import read_picture
from rllib_llm.offline.episode_rows import (
    ROLES,
    StoredEpisode,
    check_places,
    is_episode,
    read_episode,
)
from rllib_llm.pictures.contract import IMAGES, Pictures, digest
from rllib_llm.schema import show

Parser = Callable[[bytes], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation to imitate.

    Attributes:
        messages: Messages in chat format; the last one is the assistant's.
        trained: Whether each reply of the assistant is trained, in order.
        tools: JSON schemas of the tools that the template presents, if there are any.
        sources: Sources of the pictures of each message; empty without pictures.
        pictures: The pictures by digest, which messages name; see :meth:`shown`.
    """

    messages: list[Message]
    trained: tuple[bool, ...]
    tools: list[dict[str, Any]] | None = None
    sources: list[list[Any]] = dataclasses.field(default_factory=list)
    pictures: Pictures = dataclasses.field(default_factory=dict)

    def shown(self, folder: Path | None) -> StoredConversation:
        """Return the conversation with its pictures.

        Args:
            folder: Folder that relative paths refer to; None: they are refused.

        Raises:
            RowError: A picture cannot be read.
        """
        if not self.sources:
            return self
        pictures: Pictures = {}
        messages = []
        for message, sources in zip(self.messages, self.sources, strict=True):
            read = [read_picture(source, folder) for source in sources]
            names = [digest(picture) for picture in read]
            check_places(message["content"], names, "A conversation")
            pictures |= dict(zip(names, read, strict=True))
            messages.append({**message, IMAGES: " ".join(names)} if names else message)
        return dataclasses.replace(self, messages=messages, pictures=pictures)

    @property
    def has_pictures(self) -> bool:
        """True if a message shows pictures."""
        return bool(self.sources)

    def with_reply_of(self, other: StoredConversation) -> StoredConversation:
        """Return this prompt with the other's reply: all from its first trained one.

        Of conversations with pictures, :meth:`shown` must have been called.
        """
        context = self.trained[: self.trained.index(True)]
        return StoredConversation(
            [
                *self.messages[: self._reply_start()],
                *other.messages[other._reply_start() :],
            ],
            (*context, *other.trained[other.trained.index(True) :]),
            self.tools,
            pictures={**self.pictures, **other.pictures},
        )

    def _reply_start(self) -> int:
        """Return the number of the first trained reply's message."""
        replies = [i for i, m in enumerate(self.messages) if m["role"] == "assistant"]
        return replies[self.trained.index(True)]


def parse_row(line: bytes) -> StoredConversation | StoredEpisode:
    """Return the conversation or the saved episode in a line of JSON.

    Raises:
        RowError: The line has no form that can be imitated.
    """
    row = _parse_object(line)
    if is_episode(row):
        return read_episode(row)
    return _conversation_in(row, ", or 'agents'")


def parse_conversation(line: bytes) -> StoredConversation:
    """Return the conversation in a line of JSON.

    Two forms are read: ``messages`` (chat format; ``"train": false`` leaves a reply out
    of the loss), and ``prompt`` with ``completion``, both texts or lists of messages.
    ``tools`` holds JSON schemas. Pictures are parts of a user's message, or stand in
    the column ``images``, for the placeholders of the texts in order.

    Raises:
        RowError: The line has neither form.
    """
    return _conversation_in(_parse_object(line))


def _conversation_in(row: dict[str, Any], others: str = "") -> StoredConversation:
    if "messages" in row:
        raw = row["messages"]
    elif "prompt" in row and "completion" in row:
        raw = _joined(row["prompt"], row["completion"], "completion")
    else:
        raise RowError(
            f"columns {', '.join(map(repr, list(row)[:8]))}: a row needs 'messages', "
            f"or 'prompt' and 'completion'{others}."
        )
    return _conversation_of(raw, row.get("tools"), row.get(IMAGES))


def _parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RowError(f"{show(row, 40)} must be a JSON object of columns.")
    return row


def _joined(prompt: Any, completion: Any, name: str) -> list[Any]:
    """Return prompt and completion as one list of messages."""
    before = [_message_of("user", prompt)] if isinstance(prompt, str) else prompt
    after = (
        [_message_of("assistant", completion)] if isinstance(completion, str) else None
    )
    after = completion if after is None else after
    for column, part in (("prompt", before), (name, after)):
        if not isinstance(part, list) or not part:
            raise RowError(
                f"{column}={show(part, 40)} must be a text or a list of messages."
            )
    # What the prompt's assistant said is context, as TRL reads such rows.
    context = [
        {**each, "train": False}
        if isinstance(each, dict) and each.get("role") == "assistant"
        else each
        for each in before
    ]
    return [*context, *after]


def _conversation_of(
    raw: Any, tools: Any = None, images: Any = None
) -> StoredConversation:
    """Return checked messages as a conversation.

    Args:
        raw: The messages.
        tools: Column of tools.
        images: Column of pictures.

    Raises:
        RowError: They are not a conversation that ends with a reply.
    """
    if not isinstance(raw, list) or not raw:
        raise RowError(f"messages={show(raw, 40)} must be a list of messages.")
    read = [_message(i, each) for i, each in enumerate(raw)]
    messages = [message for message, _ in read]
    sources = [of_message for _, of_message in read]
    given = [] if images is None else images if isinstance(images, list) else [images]
    place_pictures(messages, sources, IMAGES if given else None, given)
    roles = [message["role"] for message in messages]
    if "system" in roles[1:]:
        raise RowError("messages: only the first one can have the role 'system'.")
    if roles[-1] != "assistant":
        raise RowError(
            f"messages: the last one has the role {roles[-1]!r}; it must be "
            "'assistant', the reply to imitate."
        )
    before = ["system", *roles] if roles[0] != "system" else roles
    for i, (last, role) in enumerate(itertools.pairwise(before)):
        if role == "assistant" and last in ("assistant", "system"):
            raise RowError(
                f"messages[{i - (len(before) - len(roles)) + 1}]: a reply must follow "
                f"a message of the role 'user' or 'tool', not {last!r}."
            )
    trained = tuple(
        each.get("train") in (None, True) for each in raw if each["role"] == "assistant"
    )
    if not any(trained):
        raise RowError("messages: every reply has 'train': false; nothing is imitated.")
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(each, dict) for each in tools)
    ):
        raise RowError(f"tools={show(tools, 40)} must be a list of JSON schemas.")
    return StoredConversation(
        messages, trained, tools or None, sources if any(sources) else []
    )


def _message_of(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _message(number: int, raw: Any) -> tuple[Message, list[Any]]:
    """Return a message, and the sources of its pictures."""
    where = f"messages[{number}]"
    if not isinstance(raw, dict) or raw.get("role") not in ROLES:
        raise RowError(
            f"{where}={show(raw, 60)} must be an object with 'role' (one of "
            f"{', '.join(ROLES)}) and 'content'."
        )
    if raw.get("tool_calls"):
        raise RowError(
            f"{where}.tool_calls is not supported. Write the call into 'content' as "
            "the model writes it."
        )
    # Columns of Parquet give null to messages that lack a key.
    content, train = raw.get("content"), raw.get("train")
    sources: list[Any] = []
    if isinstance(content, list):
        content, sources = joined_parts(where, content, raw["role"])
    if not isinstance(content, str) or not content.strip():
        raise RowError(f"{where}.content={show(content, 40)} must be a text.")
    if not isinstance(train, bool | None):
        raise RowError(f"{where}.train={show(train, 20)} must be true or false.")
    return {"role": raw["role"], "content": content}, sources


@dataclasses.dataclass(frozen=True, slots=True)
class StoredPair:
    """A preference pair of a data file."""

    chosen: StoredConversation
    rejected: StoredConversation

    def shown(self, folder: Path | None) -> StoredPair:
        """Return the pair with its pictures; see :meth:`StoredConversation.shown`."""
        return StoredPair(self.chosen.shown(folder), self.rejected.shown(folder))

    @property
    def has_pictures(self) -> bool:
        """True if a message of one side shows pictures."""
        return self.chosen.has_pictures or self.rejected.has_pictures


def parse_pair(line: bytes) -> StoredPair:
    """Return the pair in a line of JSON.

    It has ``chosen`` and ``rejected``: whole conversations as lists of messages, or
    continuations of ``prompt``, each a text or a list of messages. Pictures are as of
    :func:`parse_conversation`; those of ``images`` belong to both sides.

    Raises:
        RowError: The line has not this form, or both sides are equal.
    """
    row = _parse_object(line)
    for name in ("chosen", "rejected"):
        if name not in row:
            raise RowError(
                f"columns {', '.join(map(repr, list(row)[:8]))}: a row needs 'chosen' "
                "and 'rejected', and 'prompt' unless they are whole conversations."
            )
    pair = StoredPair(_side(row, "chosen"), _side(row, "rejected"))
    chosen, rejected = ((s.messages, s.sources) for s in (pair.chosen, pair.rejected))
    if chosen == rejected:
        raise RowError("chosen and rejected are equal.")
    return pair


def _side(row: dict[str, Any], name: str) -> StoredConversation:
    raw = row[name]
    if "prompt" in row:
        raw = _joined(row["prompt"], raw, name)
    try:
        return _conversation_of(raw, row.get("tools"), row.get(IMAGES))
    except RowError as error:
        raise RowError(f"{name}: {error}") from None


@dataclasses.dataclass(frozen=True, slots=True)
class StoredLabelled:
    """A conversation of a data file whose reply is desirable or not."""

    conversation: StoredConversation
    desirable: bool

    def shown(self, folder: Path | None) -> StoredLabelled:
        """Return it with its pictures; see :meth:`StoredConversation.shown`."""
        return StoredLabelled(self.conversation.shown(folder), self.desirable)

    @property
    def has_pictures(self) -> bool:
        """True if a message shows pictures."""
        return self.conversation.has_pictures


ROWS_WITH_PICTURES = (StoredConversation, StoredPair, StoredLabelled)
"""Contents of rows whose pictures are read by ``shown()``, and not with the row."""


def parse_labelled(line: bytes) -> StoredLabelled:
    """Return the conversation and its label in a line of JSON.

    It has a form that :func:`parse_conversation` reads, and ``label``, true or false.

    Raises:
        RowError: The line has not this form.
    """
    row = _parse_object(line)
    label = row.get("label")
    if not isinstance(label, bool):
        given = f"label={show(label, 20)}" if "label" in row else "no column 'label'"
        raise RowError(
            f"{given}: a row needs 'label', true if its reply is desirable, else "
            "false, beside 'prompt' and 'completion', or 'messages'."
        )
    return StoredLabelled(parse_conversation(line), label)


def parser_of(columns: Collection[str]) -> Parser | None:
    """Return what reads rows with these columns; None: they are tasks."""
    if "label" in columns and {"messages", "completion"} & set(columns):
        return parse_labelled
    if {"messages", "completion", "agents"} & set(columns):
        return parse_row
    return parse_pair if {"chosen", "rejected"} & set(columns) else None
