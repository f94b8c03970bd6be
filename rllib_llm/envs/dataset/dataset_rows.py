"""The prompt, answer and demonstration in a row of a data file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_llm.data.types import Message
from rllib_llm.errors import did_you_mean
from rllib_llm.pictures.contract import PLACEHOLDER, quoted
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
        images: Picture, or list of pictures, of the prompt; None: the file has none
            beside those in messages.
    """

    prompt: str = "prompt"
    answer: str | None = "answer"
    demonstration: str | None = None
    images: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DatasetRow:
    """A task.

    Attributes:
        preceding: Messages before the last one of the prompt, in chat format.
        prompt: Text of the last message, which is the user's.
        answer: Right answer, as in the file.
        demonstration: Completion to imitate, if the file has one.
        values: All columns of the row.
        pictures: Sources of the pictures of every message, the prompt's last; each
            message has a placeholder for each of them.
        folder: Folder that relative paths of pictures refer to; None: no folder.
    """

    preceding: list[Message]
    prompt: str
    answer: Any
    demonstration: str | None
    values: dict[str, Any]
    pictures: list[list[Any]]
    folder: Path | None = None


def parse_row(line: bytes, columns: Columns, folder: Path | None = None) -> DatasetRow:
    """Return the task in a line of JSON.

    Args:
        line: The line.
        columns: Columns of the file.
        folder: Folder that relative paths of pictures refer to.

    Raises:
        RowError: The line is not a JSON object, or a column is missing or unusable.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise RowError(f"{show(values, 40)} must be a JSON object of columns.")
    messages, pictures = _messages(columns.prompt, _column(values, columns.prompt))
    place_pictures(messages, pictures, *_column_pictures(values, columns.images))
    answer = None if columns.answer is None else _column(values, columns.answer)
    demonstration = None
    if columns.demonstration is not None:
        demonstration = _column(values, columns.demonstration)
        if not isinstance(demonstration, str) or not demonstration.strip():
            raise RowError(
                f"{columns.demonstration}={show(demonstration, 40)} must be a text."
            )
    prompt = messages[-1]["content"]
    return DatasetRow(
        messages[:-1], prompt, answer, demonstration, values, pictures, folder
    )


def _column(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise RowError(f"no column {name!r}. {did_you_mean(name, list(values)[:30])}")
    if values[name] is None:
        raise RowError(f"{name} is null.")
    return values[name]


def _messages(name: str, prompt: Any) -> tuple[list[Message], list[list[Any]]]:
    """Return the messages of a prompt, and the sources of the pictures of each.

    The source None is the next picture of the column of pictures.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": _text(name, prompt)}], [[]]
    if not isinstance(prompt, list) or not prompt:
        raise RowError(
            f"{name}={show(prompt, 40)} must be a text or a list of messages."
        )
    read = [_message(f"{name}[{i}]", each) for i, each in enumerate(prompt)]
    roles = [message["role"] for message, _ in read]
    if roles[-1] != "user":
        raise RowError(
            f"{name}: the last message has the role {roles[-1]!r}; it must be 'user'. "
            "Put the reply into another column (demonstration)."
        )
    if "system" in roles[1:]:
        raise RowError(f"{name}: only the first message can have the role 'system'.")
    return [message for message, _ in read], [sources for _, sources in read]


def _message(where: str, message: Any) -> tuple[Message, list[Any]]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RowError(
            f"{where}={show(message, 60)} must be an object with 'role' (one of "
            f"{', '.join(_ROLES)}) and 'content'."
        )
    role, content = message["role"], message.get("content")
    sources: list[Any] = []
    if isinstance(content, list):
        content, sources = joined_parts(where, content, role)
    return {"role": role, "content": _text(f"{where}.content", content)}, sources


def joined_parts(where: str, parts: list[Any], role: str) -> tuple[str, list[Any]]:
    """Return the text of a message in parts, and the sources of its pictures.

    The source None is the next picture of the column of pictures.

    Args:
        where: Place of the message, for errors.
        parts: Its content, with the types "text" and "image" or "image_url".
        role: Its role.

    Raises:
        RowError: A part has another form, or a message has pictures and is not the
            user's.
    """
    texts: list[str] = []
    sources: list[Any] = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("image", "image_url"):
            texts.append(PLACEHOLDER)
            sources.append(_source(part))
        else:
            raise RowError(
                f"{where}.content[{i}]={show(part, 60)} must have the type 'text', "
                "with 'text', or the type 'image', with 'image'."
            )
    if not sources:
        return "".join(texts), []
    if role != "user":
        raise RowError(
            f"{where}: a message of the role {role!r} has pictures; only those of the "
            "role 'user' can show them."
        )
    # A placeholder that the text itself contains shows no picture.
    kinds = [part["type"] for part in parts]
    shown = [
        quoted(t) if kind == "text" else t for t, kind in zip(texts, kinds, strict=True)
    ]
    return "".join(shown), sources


def _source(part: dict[str, Any]) -> Any:
    """Return the picture that a part holds; None: it is in the column of pictures."""
    url = part.get("image_url")
    if isinstance(url, dict):
        return url.get("url")
    for name in ("image_url", "image", "path", "bytes"):
        if part.get(name) is not None:
            return {"bytes": part[name]} if name == "bytes" else part[name]
    return None


def _column_pictures(
    values: Mapping[str, Any], column: str | None
) -> tuple[str | None, list[Any]]:
    """Return the column of pictures and its pictures in a row."""
    if column is None:
        return None, []
    if column in values and values[column] is None:
        return column, []
    given = _column(values, column)
    return column, list(given) if isinstance(given, list) else [given]


def place_pictures(
    messages: list[Message],
    pictures: list[list[Any]],
    column: str | None,
    given: list[Any],
) -> None:
    """Give the pictures of the column to messages, in order.

    They are at the placeholders of texts, and at parts without a source; without any,
    they are before the first text of the user.

    Args:
        messages: The messages; the text of the first one may change.
        pictures: The sources of each message, which receive the column's.
        column: Name of the column; None: there is none.
        given: Its pictures.

    Raises:
        RowError: There are more or fewer places than pictures.
    """
    if column is not None:
        for message, sources in zip(messages, pictures, strict=True):
            if not sources and message["role"] == "user":
                sources += [None] * message["content"].count(PLACEHOLDER)
    places = sum(source is None for sources in pictures for source in sources)
    if column is None and places:
        raise RowError(
            "a picture's part has no 'image', and there is no column of pictures. "
            "Give each part its picture. Name the column of pictures (env_config: "
            "images; in data.files it is 'images')."
        )
    if given and not places:
        first = next(i for i, m in enumerate(messages) if m["role"] == "user")
        marks = (PLACEHOLDER + "\n") * len(given)
        messages[first]["content"] = marks + messages[first]["content"]
        pictures[first][:0] = given
        return
    if places != len(given):
        raise RowError(
            f"{column} has {len(given)} pictures, but the prompt has {places} places "
            f"for them. Write one {PLACEHOLDER!r} for each, or none at all."
        )
    rest = iter(given)
    for sources in pictures:
        sources[:] = [next(rest) if s is None else s for s in sources]


def _text(where: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise RowError(f"{where}={show(text, 40)} must be a text that is not blank.")
    return text
