"""Saved episodes in the forms that other libraries read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rllib_llm.algorithms.pref.pairs import outcome_pairs
from rllib_llm.data.types import Message
from rllib_llm.errors import ConfigError
from rllib_llm.offline.episode_rows import StoredAgent, StoredEpisode

EPISODES, MESSAGES, PREFERENCES = "episodes", "messages", "preferences"
FORMS = (EPISODES, MESSAGES, PREFERENCES)
SUFFIXES = (".jsonl", ".parquet")


def conversations(agent: StoredAgent) -> list[list[dict[str, Any]]]:
    """Return an agent's conversations as messages, ``train`` with untrained replies.

    Raises:
        ConfigError: A turn has tokens alone, or the agent sees pictures.
    """
    if agent.pictures:
        raise ConfigError(
            "The episodes show pictures, which rows of messages do not hold. Export "
            "the run as 'episodes'."
        )
    by_number: dict[int, list[dict[str, Any]]] = {}
    for turn in agent.turns:
        messages = by_number.setdefault(turn.conversation, [])
        if not turn.messages:
            raise ConfigError(
                "A turn has tokens and no messages: a program sent its prompt as text "
                "or tokens. Export the run as 'episodes'."
            )
        messages += turn.messages
        reply = {"role": "assistant", "content": turn.completion}
        messages.append(reply if turn.train else {**reply, "train": False})
    return list(by_number.values())


def as_messages(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    """Yield the episode's conversations as rows with ``messages``."""
    for agent in episode.agents:
        for messages in conversations(agent):
            if any(m["role"] == "assistant" and m.get("train", True) for m in messages):
                yield {
                    "messages": messages,
                    **({"tools": agent.tools} if agent.tools else {}),
                }


def as_preferences(episodes: Sequence[StoredEpisode]) -> Iterator[dict[str, Any]]:
    """Yield pairs of episodes of one task as ``prompt``, ``chosen``, ``rejected``.

    The better half of a task's episodes is paired with the worse one, best with worst
    (``one_to_one`` of Pref); the prompt is what both have in common.

    Raises:
        ConfigError: An episode has no task, or several agents or conversations.
    """
    numbers: dict[str, int] = {}
    sides: list[list[Message]] = []
    for episode in episodes:
        if not episode.task or len(episode.agents) > 1:
            raise ConfigError(
                f"episode {episode.id!r}: pairs need the column 'task' and a single "
                "agent. Export the run as 'messages'."
            )
        numbers.setdefault(episode.task, len(numbers))
        messages, *others = conversations(episode.agents[0])
        if others:
            raise ConfigError(
                f"episode {episode.id!r} has several conversations, which have no "
                "common prompt. Export the run as 'messages'."
            )
        sides.append([{k: m[k] for k in ("role", "content")} for m in messages])
    pairs = outcome_pairs(
        [episode.episode_return for episode in episodes],
        [numbers[episode.task] for episode in episodes],
    )
    for better, worse in pairs:
        if sides[better] != sides[worse]:
            start = _fork(sides[better], sides[worse])
            yield {
                "prompt": sides[better][:start],
                "chosen": sides[better][start:],
                "rejected": sides[worse][start:],
            }


def _fork(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Return the index of the last reply up to which both are equal."""
    equal = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        equal += 1
    while equal and (
        equal >= min(len(one), len(other)) or one[equal]["role"] != "assistant"
    ):
        equal -= 1
    return equal


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows as JSON Lines or Parquet, by the file's name; return their number."""
    if path.suffix == ".jsonl":
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
        return count
    import pyarrow
    import pyarrow.parquet

    flat = [_with_texts(row) for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), path)
    return len(flat)


def _with_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with objects of any form as JSON, for columns of one type."""
    row = dict(row)
    if row.get("task"):
        row["task"] = {**row["task"], "options": _text(row["task"]["options"])}
    if "agents" in row:
        row["agents"] = [{**a, "tools": _text(a.get("tools"))} for a in row["agents"]]
    return row


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
