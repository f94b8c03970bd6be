"""The prompt, answer and demonstration in a row of a data file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rllib_llm.data.types import Message
from rllib_llm.errors import did_you_mean
from rllib_llm.schema import show

_ROLES = ("system", "user", "assistant")


class RowError(ValueError):
    """The row cannot be a task; the message says why, without place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Names of a file's columns.

    Attributes:
        prompt: Question, or messages in chat format.
        answer: Right answer; None: the file has none.
        demonstration: Completion to imitate in SFT; None: the answer is imitated.
    """

    prompt: str = "prompt"
    answer: str | None = "answer"
    demonstration: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DatasetRow:
    """A task.

    Attributes:
        preceding: Messages before the last one of the prompt, in chat format.
        prompt: Text of the last message, which is the user's.
        answer: Right answer, as in the file.
        demonstration: Completion to imitate, if the file has one.
        values: All columns of the row.
    """

    preceding: list[Message]
    prompt: str
    answer: Any
    demonstration: str | None
    values: dict[str, Any]

    @property
    def key(self) -> str:
        """The prompt without differences in case and spaces; equal for duplicates."""
        texts = [*(m["content"] for m in self.preceding), self.prompt]
        return json.dumps([" ".join(text.split()).lower() for text in texts])


def parse_row(line: bytes, columns: Columns) -> DatasetRow:
    """Return the task in a line of JSON.

    Raises:
        RowError: The line is not a JSON object, or a column is missing or unusable.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise RowError(f"{show(values, 40)} must be a JSON object of columns.")
    preceding, prompt = _messages(columns.prompt, _column(values, columns.prompt))
    answer = None if columns.answer is None else _column(values, columns.answer)
    demonstration = None
    if columns.demonstration is not None:
        demonstration = _column(values, columns.demonstration)
        if not isinstance(demonstration, str) or not demonstration.strip():
            raise RowError(
                f"{columns.demonstration}={show(demonstration, 40)} must be a text."
            )
    return DatasetRow(preceding, prompt, answer, demonstration, values)


def _column(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise RowError(f"no column {name!r}. {did_you_mean(name, list(values)[:30])}")
    if values[name] is None:
        raise RowError(f"{name} is null.")
    return values[name]


def _messages(name: str, prompt: Any) -> tuple[list[Message], str]:
    """Return the messages before the last one, and the last one's text."""
    if isinstance(prompt, str):
        return [], _text(name, prompt)
    if not isinstance(prompt, list) or not prompt:
        raise RowError(
            f"{name}={show(prompt, 40)} must be a text or a list of messages."
        )
    messages = [_message(f"{name}[{i}]", each) for i, each in enumerate(prompt)]
    roles = [message["role"] for message in messages]
    if roles[-1] != "user":
        raise RowError(
            f"{name}: the last message has the role {roles[-1]!r}; it must be 'user'. "
            "Put the reply into another column (demonstration)."
        )
    if "system" in roles[1:]:
        raise RowError(f"{name}: only the first message can have the role 'system'.")
    return messages[:-1], messages[-1]["content"]


def _message(where: str, message: Any) -> Message:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RowError(
            f"{where}={show(message, 60)} must be an object with 'role' (one of "
            f"{', '.join(_ROLES)}) and 'content'."
        )
    if isinstance(message.get("content"), list):
        raise RowError(f"{where}: content in parts (e.g. pictures) is not supported.")
    content = _text(f"{where}.content", message.get("content"))
    return {"role": message["role"], "content": content}


def _text(where: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"{where}={show(text, 40)} must be a text that is not blank.")
    return text
