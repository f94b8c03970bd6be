"""Conversations in data files: read by number, checked line by line."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rllib_llm.data.types import Message
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.envs.dataset.row_files import cache_key, local_files, numbered_lines
from rllib_llm.errors import ConfigError
from rllib_llm.schema import show
from rllib_llm.seeding import stable_seed

_ROLES = ("system", "user", "assistant", "tool")
_MAX_SHOWN = 5
_MAX_REPORTED = 50

Parse = Callable[[bytes], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation to imitate.

    Attributes:
        messages: Messages in chat format; the last one is the assistant's.
        trained: Whether each reply of the assistant is trained, in order.
        tools: JSON schemas of the tools that the template presents, if there are any.
    """

    messages: list[Message]
    trained: tuple[bool, ...]
    tools: list[dict[str, Any]] | None = None


def parse_conversation(line: bytes) -> StoredConversation:
    """Return the conversation in a line of JSON.

    Two forms are read: ``messages`` (chat format; ``"train": false`` leaves a reply out
    of the loss), and ``prompt`` with ``completion``, both texts or lists of messages.
    ``tools`` holds JSON schemas.

    Raises:
        RowError: The line has neither form.
    """
    row = parse_object(line)
    if "messages" in row:
        raw = row["messages"]
    elif "prompt" in row and "completion" in row:
        raw = joined(row["prompt"], row["completion"], "completion")
    else:
        raise RowError(
            f"columns {', '.join(map(repr, list(row)[:8]))}: a row needs 'messages', "
            "or 'prompt' and 'completion'."
        )
    return conversation_of(raw, row.get("tools"))


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise RowError(f"{show(row, 40)} must be a JSON object of columns.")
    return row


def joined(prompt: Any, completion: Any, name: str) -> list[Any]:
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


def conversation_of(raw: Any, tools: Any = None) -> StoredConversation:
    """Return checked messages as a conversation.

    Raises:
        RowError: They are not a conversation that ends with a reply.
    """
    if not isinstance(raw, list) or not raw:
        raise RowError(f"messages={show(raw, 40)} must be a list of messages.")
    messages = [_message(i, each) for i, each in enumerate(raw)]
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
        each.get("train", True) for each in raw if each["role"] == "assistant"
    )
    if not any(trained):
        raise RowError("messages: every reply has 'train': false; nothing is imitated.")
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(each, dict) for each in tools)
    ):
        raise RowError(f"tools={show(tools, 40)} must be a list of JSON schemas.")
    return StoredConversation(messages, trained, tools or None)


def _message_of(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _message(number: int, raw: Any) -> Message:
    where = f"messages[{number}]"
    if not isinstance(raw, dict) or raw.get("role") not in _ROLES:
        raise RowError(
            f"{where}={show(raw, 60)} must be an object with 'role' (one of "
            f"{', '.join(_ROLES)}) and 'content'."
        )
    if raw.get("tool_calls"):
        raise RowError(
            f"{where}.tool_calls is not supported. Write the call into 'content' as "
            "the model writes it."
        )
    content, train = raw.get("content"), raw.get("train", True)
    if isinstance(content, list):
        raise RowError(f"{where}: content in parts (e.g. pictures) is not supported.")
    if not isinstance(content, str) or not content.strip():
        raise RowError(f"{where}.content={show(content, 40)} must be a text.")
    if not isinstance(train, bool):
        raise RowError(f"{where}.train={show(train, 20)} must be true or false.")
    return {"role": raw["role"], "content": content}


class RowFile:
    """Rows of data files, read from disk by number; 16 bytes per row in memory.

    Args:
        paths: Files, patterns with ``*``, or ``hf://datasets/OWNER/NAME/FILE``.
        parse: Returns a line's content; raises RowError.

    Raises:
        ConfigError: A file or a row cannot be used, or there are no rows.
    """

    def __init__(self, paths: Sequence[str], parse: Parse):
        self._parse = parse
        self._files = local_files(paths)
        entries, problems = [], []
        for entry, problem in _scan(self._files, parse):
            entries.append(entry)
            if problem:
                problems.append(problem)
        if problems:
            raise ConfigError(_summary(problems, len(entries)))
        if not entries:
            raise ConfigError(f"files={list(paths)}: they have no rows. Give others.")
        self._entries = np.array(entries, np.int64)
        self._opened = [os.open(file, os.O_RDONLY) for file in self._files]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._entries)

    def __getitem__(self, number: int) -> Any:
        """Return the content of a row.

        Raises:
            ConfigError: The file has changed since it was opened.
        """
        file, length, offset = self._entries[number].tolist()
        try:
            return self._parse(os.pread(self._opened[file], length, offset))
        except RowError as error:
            raise ConfigError(
                f"{self._files[file]} has changed while it is in use: {error} "
                "Start the run again."
            ) from error

    def in_passes(self, seed: int, first: int, count: int) -> list[Any]:
        """Return the rows ``first`` to ``first + count`` of an endless sequence.

        It has every row once per pass, in a new random order each.

        Args:
            seed: Determines the orders.
            first: Number of the first one in the sequence, >= 0.
            count: Number of rows.
        """
        rows, orders = [], {}
        for number in range(first, first + count):
            turn, place = divmod(number, len(self))
            if turn not in orders:
                rng = np.random.default_rng(stable_seed(seed, "rows", turn))
                orders[turn] = rng.permutation(len(self))
            rows.append(self[int(orders[turn][place])])
        return rows


def _scan(
    files: Sequence[Path], parse: Parse
) -> Iterator[tuple[tuple[int, int, int], str]]:
    """Yield file, length and offset of each row, and why it cannot be used, or ""."""
    for number, file in enumerate(files):
        for line, offset, text in numbered_lines(file):
            problem = ""
            try:
                parse(text)
            except RowError as error:
                problem = f"{file.name}, line {line}: {error}"
            yield (number, len(text), offset), problem


@dataclasses.dataclass(frozen=True, slots=True)
class ConversationsReport:
    """Contents of a file of conversations.

    Attributes:
        num_rows: Number of lines that are not blank.
        problems: Lines that cannot be imitated, with the reason.
    """

    num_rows: int
    problems: list[str]

    @classmethod
    def of(cls, path: str) -> ConversationsReport:
        """Read all rows.

        Raises:
            ConfigError: The file cannot be read.
        """
        scanned = _scan(local_files([path]), parse_conversation)
        problems = [problem for _, problem in scanned]
        return cls(len(problems), [each for each in problems if each])

    @property
    def ok(self) -> bool:
        """True if there are rows and all can be imitated."""
        return not self.problems and self.num_rows > 0

    def __str__(self) -> str:
        good = self.num_rows - len(self.problems)
        lines = [f"{good:,} of {self.num_rows:,} rows are conversations to imitate"]
        lines += [f"error: {problem}" for problem in self.problems[:_MAX_REPORTED]]
        if len(self.problems) > _MAX_REPORTED:
            lines.append(f"... and {len(self.problems) - _MAX_REPORTED:,} more")
        return "\n".join(lines)


def holds_conversations(path: str) -> bool:
    """Return whether the first row has the columns of a conversation.

    Raises:
        ConfigError: The file cannot be read.
    """
    for file in local_files([path]):
        for _, _, text in numbered_lines(file):
            try:
                return bool({"messages", "completion"} & parse_object(text).keys())
            except RowError:
                return False
    return False


def _summary(problems: list[str], count: int) -> str:
    more = len(problems) - _MAX_SHOWN
    return (
        f"{len(problems):,} of {count:,} rows cannot be used.\n"
        + "\n".join(f"  {problem}" for problem in problems[:_MAX_SHOWN])
        + (f"\n  ... and {more:,} more" if more > 0 else "")
        + "\n'rllib-llm check FILE' lists all of them."
    )


def open_rows(files: str | Sequence[str], parse: Parse) -> RowFile:
    """Return the rows of files, which are read once per process unless they change.

    Args:
        files: A path or several; see :class:`RowFile`.
        parse: A function of the module, which is part of the key of opened files.

    Raises:
        ConfigError: A file or a row cannot be used.
    """
    paths = (files,) if isinstance(files, str) else tuple(files)
    return _opened(paths, parse, cache_key(local_files(paths)))


@lru_cache(maxsize=8)
def _opened(paths: tuple[str, ...], parse: Parse, key: str) -> RowFile:
    return RowFile(paths, parse)
