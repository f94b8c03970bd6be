"""The package's file format of episodes: one episode per row, texts and tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_llm.data.types import FinishReason, Message, StopReason
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.pictures.contract import IMAGES, PLACEHOLDER, Pictures
from rllib_llm.pictures.placement import PictureRef
from rllib_llm.pictures.png import unpacked, unpacked_refs
from rllib_llm.schema import show

VERSION = 1
ROLES = ("system", "user", "assistant", "tool")
_SUCCESS = (True, False, None)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn of a data file.

    Attributes:
        messages: Messages after the turn before, which this one answers.
        completion: The answer, as the conversation keeps it.
        reward: The turn's reward.
        train: Whether it is trained; if not, it is context.
        finish: Reason that sampling ended.
        conversation: Number of its conversation among the agent's.
        step: Environment step in which it was taken.
        prompt_ids: Tokens appended before sampling; None without tokens.
        extends: Whether earlier tokens of the conversation are a prefix.
        action_ids: Sampled tokens; None without tokens.
        action_logps: Their log-probabilities in nats; None where they are unknown.
        images: Pictures of the prompt, with places in ``prompt_ids``.
    """

    messages: list[Message]
    completion: str
    reward: float = 0.0
    train: bool = True
    finish: FinishReason = FinishReason.STOP
    conversation: int = 0
    step: int = 0
    prompt_ids: list[int] | None = None
    extends: bool = True
    action_ids: list[int] | None = None
    action_logps: list[float] | None = None
    images: tuple[PictureRef, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StoredAgent:
    """One agent's turns in an episode of a data file.

    Attributes:
        turns: The turns.
        agent_id: AgentID; None with a single agent.
        agent_index: Number of the agent in its environment's declared order.
        tools: JSON schemas of the tools that the template presents.
        tokenizer: Fingerprint of the tokenizer of the ids; None without ids.
        pictures: Pictures that messages and turns name by their digests.
    """

    turns: list[StoredTurn]
    agent_id: str | None = None
    agent_index: int = 0
    tools: list[dict[str, Any]] | None = None
    tokenizer: str | None = None
    pictures: Pictures = dataclasses.field(default_factory=dict)

    @property
    def has_ids(self) -> bool:
        """True if every turn has its tokens."""
        return all(turn.action_ids is not None for turn in self.turns)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode of a data file.

    Attributes:
        id: Its id, unique in the files; None without one.
        agents: Its agents' turns.
        episode_return: Sum of the rewards, or the column ``return``.
        success: Whether the task was solved; None where unknown.
        stop_reason: Reason that the episode ended; None where unknown.
        task: The task as text, equal for the rollouts of a group; "" without one.
    """

    id: str | None
    agents: list[StoredAgent]
    episode_return: float
    success: bool | None = None
    stop_reason: StopReason | None = None
    task: str = ""

    @property
    def is_solved(self) -> bool:
        """True if the task was solved or, without ``success``, the return is > 0."""
        return self.episode_return > 0 if self.success is None else self.success


def is_episode(row: Mapping[str, Any]) -> bool:
    """Return whether a row has this format."""
    return row.get("agents") is not None


def read_episode(row: Mapping[str, Any]) -> StoredEpisode:
    """Return the episode in a row.

    Raises:
        RowError: A column is missing or wrong, or no turn is trained.
    """
    version = _get(row, "version", VERSION, int, "a whole number")
    if version > VERSION:
        raise RowError(
            f"version={version}: written by a newer version of rllib_llm, which this "
            f"one (up to {VERSION}) cannot read."
        )
    raw = _get(row, "agents", [], list, "a list of agents with 'turns'")
    if not raw:
        raise RowError("agents=[]: an episode needs an agent with 'turns'.")
    agents = [_agent(each, f"agents[{i}]") for i, each in enumerate(raw)]
    if len({agent.agent_id for agent in agents}) < len(agents):
        names = [agent.agent_id for agent in agents]
        raise RowError(f"agents: the 'agent_id's {show(names, 60)} must differ.")
    turns = [turn for agent in agents for turn in agent.turns]
    if not any(turn.train for turn in turns):
        raise RowError("every turn has 'train': false; nothing is imitated.")
    rewards = sum(turn.reward for turn in turns)
    given = _get(row, "return", rewards, (int, float), "a number")
    success = row.get("success")
    if not any(success is each for each in _SUCCESS):
        raise RowError(f"success={show(success, 20)} must be true, false or null.")
    return StoredEpisode(
        _get(row, "id", None, str, "a text"),
        agents,
        float(given),
        success,
        _one_of(row, "stop_reason", StopReason, None),
        _task_key(row.get("task")),
    )


def _agent(raw: Any, where: str) -> StoredAgent:
    if not isinstance(raw, dict):
        raise RowError(f"{where}={show(raw, 40)} must be an object with 'turns'.")
    turns = _get(raw, "turns", [], list, "a list of turns", where)
    if not turns:
        raise RowError(f"{where}.turns: an agent needs a turn. Leave the agent out.")
    read = [_turn(each, f"{where}.turns[{i}]") for i, each in enumerate(turns)]
    if not read[0].messages and read[0].action_ids is None:
        raise RowError(f"{where}.turns[0] needs 'messages' or 'observation'.")
    tokenizer = _get(raw, "tokenizer", None, str, "a text", where)
    if tokenizer is None and any(turn.action_ids for turn in read):
        raise RowError(
            f"{where} has ids, but no 'tokenizer', the fingerprint that tells whose "
            "they are. Add it, or leave the ids out."
        )
    pictures = _pictures(raw, where)
    _check_digests(read, pictures, where)
    return StoredAgent(
        read,
        _get(raw, "agent_id", None, str, "a text", where),
        _get(raw, "agent_index", 0, int, "a whole number", where),
        _tools(raw.get("tools"), where),
        tokenizer,
        pictures,
    )


def _pictures(raw: Mapping[str, Any], where: str) -> Pictures:
    """Return the pictures of an agent by digest."""
    given = _get(raw, "pictures", None, list, "a list of pictures", where)
    try:
        return unpacked(given or ())
    except (KeyError, TypeError, ValueError) as error:
        raise RowError(
            f"{where}.pictures must have 'digest' and 'png' of each picture: {error}"
        ) from None


def _check_digests(turns: Sequence[StoredTurn], pictures: Pictures, where: str) -> None:
    """Check that every picture that a turn names is there."""
    for number, turn in enumerate(turns):
        named = [ref.digest for ref in turn.images]
        for message in turn.messages:
            names = message.get(IMAGES, "").split()
            check_places(message["content"], names, f"{where}.turns[{number}]")
            named += names
        missing = [name for name in named if name not in pictures]
        if missing:
            raise RowError(
                f"{where}.turns[{number}] shows the picture {missing[0]}, which is not "
                f"among {where}.pictures."
            )


def check_places(text: str, names: Sequence[str], where: str) -> None:
    """Check that a message of a file marks the place of each of its pictures.

    Raises:
        RowError: It has another number of placeholders.
    """
    if names and text.count(PLACEHOLDER) != len(names):
        raise RowError(
            f"{where} has a message with {len(names)} pictures and "
            f"{text.count(PLACEHOLDER)} times {PLACEHOLDER!r}; both must be equal."
        )


def _turn(raw: Any, where: str) -> StoredTurn:
    if not isinstance(raw, dict):
        raise RowError(f"{where}={show(raw, 40)} must be an object.")
    if not isinstance(raw.get("completion"), str):
        raise RowError(
            f"{where}.completion={show(raw.get('completion'), 40)} must be a text, the "
            "turn's answer."
        )
    prompt, action = (_ids(raw, key, where) for key in ("prompt_ids", "action_ids"))
    if (prompt is None) != (action is None):
        raise RowError(f"{where} needs both 'prompt_ids' and 'action_ids', or neither.")
    logps = _get(raw, "action_logps", None, list, "a list of numbers", where)
    if logps is not None and len(logps) != len(action or ()):
        raise RowError(
            f"{where}.action_logps has {len(logps)} values for {len(action or ())} "
            "action_ids."
        )
    return StoredTurn(
        messages=_messages(raw, where),
        completion=raw["completion"],
        reward=float(_get(raw, "reward", 0.0, (int, float), "a number", where)),
        train=_get(raw, "train", True, bool, "true or false", where),
        finish=_one_of(raw, "finish", FinishReason, FinishReason.STOP, where),
        conversation=_get(raw, "conversation", 0, int, "a whole number", where),
        step=_get(raw, "step", 0, int, "a whole number", where),
        prompt_ids=prompt,
        extends=_get(raw, "extends", True, bool, "true or false", where),
        action_ids=action,
        action_logps=logps,
        images=_refs(raw, where),
    )


def _refs(raw: Mapping[str, Any], where: str) -> tuple[PictureRef, ...]:
    given = _get(raw, "images", None, list, "a list of places", where)
    try:
        return unpacked_refs(given or ())
    except (KeyError, TypeError) as error:
        raise RowError(
            f"{where}.images must have 'digest', 'start' and 'count' of each picture: "
            f"{error}"
        ) from None


def _messages(raw: Mapping[str, Any], where: str) -> list[Message]:
    if raw.get("messages") is None:
        text = _get(raw, "observation", None, str, "a text", where)
        return [] if text is None else [{"role": "user", "content": text}]
    given = _get(raw, "messages", [], list, "a list of messages", where)
    for number, message in enumerate(given):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) or message.get("role") not in ROLES:
            raise RowError(
                f"{where}.messages[{number}]={show(message, 60)} must be an object "
                f"with 'role' (one of {', '.join(ROLES)}) and 'content', a text."
            )
        if not isinstance(message.get(IMAGES) or "", str):
            raise RowError(
                f"{where}.messages[{number}].{IMAGES}={show(message[IMAGES], 40)} must "
                "be a text: the digests of its pictures, with spaces between them."
            )
    # Parquet fills the keys that other messages have.
    return [{k: v for k, v in each.items() if v is not None} for each in given]


def _ids(raw: Mapping[str, Any], key: str, where: str) -> list[int] | None:
    ids = _get(raw, key, None, list, "a list of token ids", where)
    if ids is not None and not all(type(i) is int and i >= 0 for i in ids):
        raise RowError(f"{where}.{key}: token ids must be whole numbers from 0.")
    return ids


def _tools(raw: Any, where: str) -> list[dict[str, Any]] | None:
    if isinstance(raw, str):  # in Parquet, whose columns have one type
        try:
            raw = json.loads(raw)
        except ValueError:
            raise RowError(f"{where}.tools={show(raw, 40)} is not JSON.") from None
    if raw is not None and not (
        isinstance(raw, list) and all(isinstance(each, dict) for each in raw)
    ):
        raise RowError(f"{where}.tools={show(raw, 40)} must be a list of JSON schemas.")
    return raw or None


def _task_key(task: Any) -> str:
    """Return the instance of a task: what all rollouts of a group have in common."""
    if not isinstance(task, dict):
        return ""
    keys = ("env", "seed", "options")
    return json.dumps({k: task.get(k) for k in keys}, sort_keys=True)


def _one_of(
    raw: Mapping[str, Any], key: str, kind: Any, default: Any, where: str = ""
) -> Any:
    value = raw.get(key)
    if value is None:
        return default
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise RowError(
            f"{_path(where, key)}={show(value, 30)} must be one of {names}."
        ) from None


def _get(
    raw: Mapping[str, Any],
    key: str,
    default: Any,
    kind: type | Sequence[type],
    rule: str,
    where: str = "",
) -> Any:
    """Return an optional value, checked; null is the same as no value."""
    value = raw.get(key)
    if value is None:
        return default
    kinds = (kind,) if isinstance(kind, type) else tuple(kind)
    is_bool_for_number = isinstance(value, bool) and bool not in kinds
    if not isinstance(value, kinds) or is_bool_for_number:
        raise RowError(f"{_path(where, key)}={show(value, 40)} must be {rule}.")
    return value


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
