"""Questions about trajectories."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rllib_llm.assistants.settings import Assistant
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Message
from rllib_llm.rewards.retrieval import evidence
from rllib_llm.seeding import stable_seed

RIGHT_STEP = "right_step"  # info key: above 0 after a turn on a shortest way


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a trajectory, or about one of its turns.

    Attributes:
        messages: The text that a model reads; empty without a template.
        replies: The agent's texts up to the turn in question.
        turn: Its number, from 0; that of the last turn if the trajectory is in
            question.
        seed: Seed of the answer.
        is_good: Whether the trajectory is solved, or the first of a pair has the larger
            return (of equal ones, by chance); of a turn, whether its reward is > 0,
            it was the first to retrieve a needed document, or the environment calls it
            right. None if the assistant is not privileged.
        texts: Existing texts, if the question is answered with a text.
        trajectories: Its episodes, likewise.
    """

    messages: tuple[Message, ...]
    replies: tuple[str, ...]
    turn: int
    seed: int
    is_good: bool | None = None
    texts: tuple[str, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()


def questions_about(assistant: Assistant, trajectory: Trajectory) -> list[Question]:
    """Return the questions about a trajectory, each ``samples`` times in a row.

    With ``per="turn"`` there is one for each turn, otherwise one for the whole.
    """
    last = len(trajectory) - 1
    turns = range(last + 1) if assistant.per == "turn" else [last]
    return [
        _question(assistant, trajectory, turn, sample)
        for turn in turns
        for sample in range(assistant.samples)
    ]


def transcript(observations: Sequence[str], replies: Sequence[str]) -> str:
    """Return a conversation as one text."""
    turns = zip(observations, replies, strict=True)
    return "\n".join(f"Environment: {o}\nAgent: {r}" for o, r in turns)


def messages_of(
    assistant: Assistant, fields: Mapping[str, object]
) -> tuple[Message, ...]:
    """Return the question as messages; none without a template."""
    if not assistant.template:
        return ()
    question = {"role": "user", "content": assistant.template.format(**fields)}
    if assistant.system is None:
        return (question,)
    return ({"role": "system", "content": assistant.system}, question)


def gold_text(trajectory: Trajectory) -> str:
    """Return the right answers of a trajectory's task as one text."""
    return " / ".join(map(str, trajectory.outcome.get("gold_answers", ())))


def _good_turns(trajectory: Trajectory) -> list[bool]:
    """Return whether each turn has a reward, found a document or is right. [H]"""
    good = [reward > 0 for reward in trajectory.rewards]
    if RIGHT_STEP in trajectory.outcome:
        right = trajectory.info_per_turn(RIGHT_STEP, 0.0)
        good = [g or r > 0 for g, r in zip(good, right, strict=True)]
    if "gold_documents" not in trajectory.outcome:
        return good
    return [g or e > 0 for g, e in zip(good, evidence(trajectory), strict=True)]


def _question(
    assistant: Assistant, trajectory: Trajectory, turn: int, sample: int
) -> Question:
    task = trajectory.task
    observations = trajectory.observations[: turn + 1]
    replies = trajectory.completions[: turn + 1]
    is_good = (
        _good_turns(trajectory)[turn]
        if assistant.per == "turn"
        else trajectory.is_solved
    )
    fields = {
        "task": observations[0],
        "transcript": transcript(observations, replies),
        "observation": observations[-1],
        "reply": replies[-1],
        "turn": turn + 1,
    }
    if assistant.privileged:
        fields |= {
            "gold": gold_text(trajectory),
            "solved": "yes" if trajectory.is_solved else "no",
            "return": f"{trajectory.episode_return:g}",
        }
    return Question(
        messages=messages_of(assistant, fields),
        replies=tuple(replies),
        turn=turn,
        seed=stable_seed(
            task.seed,
            task.group_id,
            task.rollout,
            trajectory.agent,
            assistant.name,
            turn,
            sample,
        ),
        is_good=is_good if assistant.privileged else None,
    )
