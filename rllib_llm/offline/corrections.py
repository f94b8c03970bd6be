"""Conversations with a wrong turn and its correction, spliced from two episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Message

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class WrongTurn:
    """The first turn in which a failed episode differs from a solved one.

    Attributes:
        failed: The failed episode.
        solved: The solved episode of its task with most leading turns in common.
        turn: Number of the turn; both have it.
        replies: The different replies that episodes of the task gave at this place,
            the failed episode's first and the solved one's last.
    """

    failed: Trajectory
    solved: Trajectory
    turn: int
    replies: list[str]


def corrections(trajectories: Iterable[Trajectory], sentence: str) -> list[Row]:
    """Return each failed episode's first wrong turn, followed by a solved episode.

    A failed episode is spliced with the solved one of its task that has most leading
    turns in common with it. Up to the first turn in which the two differ the
    conversation is theirs; then come the failed episode's turn there and what the
    environment answered, the sentence with the solved episode's reply, and the rest of
    the solved episode. The wrong turn is context and not trained (Agent-R, Yuan et al.
    2025, arXiv:2501.11425, which lets the policy find the turn).

    A failed episode that ended with its wrong turn has nothing to go on from, and is
    left out, as are conversations with an empty reply, which files cannot hold.

    Args:
        trajectories: Trajectories of one agent, of whole groups.
        sentence: Begins the reply after the wrong turn.

    Returns:
        Rows of data files: ``messages``, replies of wrong turns with ``train: false``.
    """
    rows = []
    for wrong in wrong_turns(trajectories):
        if wrong.turn + 1 < len(wrong.failed):
            messages = _spliced(wrong.solved, wrong.failed, wrong.turn, sentence)
            if has_texts(messages):
                rows.append({"messages": messages})
    return rows


def wrong_turns(trajectories: Iterable[Trajectory]) -> Iterator[WrongTurn]:
    """Yield the first wrong turn of each failed episode whose task was solved.

    Args:
        trajectories: Trajectories of one agent, of whole groups.
    """
    by_task: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        if len(trajectory):
            by_task.setdefault(trajectory.task.group_id, []).append(trajectory)
    for members in by_task.values():
        solved = [t for t in members if t.is_solved]
        for failed in members:
            if failed.is_solved or not solved:
                continue
            # Of equal ones the first.
            good = max(solved, key=lambda t: _num_common(t, failed))
            turn = _num_common(good, failed)
            if turn < min(len(good), len(failed)):
                replies = _replies_at(members, failed, good, turn)
                yield WrongTurn(failed, good, turn, replies)


def _replies_at(
    members: Iterable[Trajectory], failed: Trajectory, good: Trajectory, turn: int
) -> list[str]:
    """Return the different replies at a place; see :class:`WrongTurn`."""
    here = [
        t.completions[turn]
        for t in members
        if len(t) > turn
        and _num_common(t, failed) >= turn
        and t.observations[turn] == failed.observations[turn]
    ]
    last = good.completions[turn]
    others = [reply for reply in here if reply != last]
    return [*dict.fromkeys([failed.completions[turn], *others]), last]


def has_texts(messages: Iterable[Message | Row]) -> bool:
    """Return whether no message is empty, as files of conversations need."""
    return all(message["content"].strip() for message in messages)


def _num_common(one: Trajectory, other: Trajectory) -> int:
    """Return the number of leading turns with equal observations and replies."""
    count = 0
    for mine, yours in zip(_turns(one), _turns(other), strict=False):
        if mine != yours:
            break
        count += 1
    return count


def _turns(trajectory: Trajectory) -> Iterable[tuple[str, str]]:
    return zip(trajectory.observations, trajectory.completions, strict=True)


def _spliced(
    good: Trajectory, failed: Trajectory, turn: int, sentence: str
) -> list[Message | dict[str, Any]]:
    """Return the messages of a correction at a turn."""
    solved, wrong = messages_by_turn(good), messages_by_turn(failed)
    before = [m for part in solved[:turn] for m in part]
    *prompt, _ = solved[turn]
    reply: dict[str, Any] = {**wrong[turn][-1], "train": False}
    *answer, _ = wrong[turn + 1]
    right = {**solved[turn][-1]}
    right["content"] = f"{sentence} {right['content']}"
    after = [m for part in solved[turn + 1 :] for m in part]
    return [*before, *prompt, reply, *answer, right, *after]


def messages_by_turn(trajectory: Trajectory) -> list[Sequence[Message]]:
    """Return the messages of each turn, its reply last. [H]"""
    messages = trajectory.messages
    replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    # The last ones: an environment's opening may contain replies, too.
    ends = [i + 1 for i in replies[len(replies) - len(trajectory) :]]
    return [messages[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def context(trajectory: Trajectory, turns: int) -> list[Row]:
    """Return the messages of the first turns, whose replies are not trained."""
    messages: list[Row] = []
    for *prompt, reply in messages_by_turn(trajectory)[:turns]:
        messages += [*prompt, {**reply, "train": False}]
    return messages
