"""Questions whose answers are texts: lessons, instructions, operations on texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rllib_llm.assistants.questions import (
    Question,
    gold_text,
    messages_of,
    transcript,
)
from rllib_llm.assistants.settings import Assistant
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    from rllib_llm.prompt_texts.asked import Asked


def text_questions(assistant: Assistant, asked: Sequence[Asked]) -> list[Question]:
    """Return a question for each group of episodes and texts."""
    return [_question(assistant, each, number) for number, each in enumerate(asked)]


def _question(assistant: Assistant, asked: Asked, number: int) -> Question:
    trajectories = asked.trajectories
    first = trajectories[0]
    episodes = [
        f"{i}. (return {t.episode_return:g})\n"
        + transcript(t.observations, t.completions)
        for i, t in enumerate(trajectories, 1)
    ]
    texts = [f"{i}. {text}" for i, text in enumerate(asked.texts, 1)]
    fields = {
        "task": first.observations[0],
        "episodes": "\n".join(episodes),
        "texts": "\n".join(texts),
    }
    if assistant.privileged:
        fields["gold"] = gold_text(first)
    task = first.task
    return Question(
        messages=messages_of(assistant, fields),
        replies=tuple(first.completions),
        turn=len(first) - 1,
        seed=stable_seed(
            task.seed, task.group_id, task.rollout, first.agent, assistant.name, number
        ),
        texts=asked.texts,
        trajectories=trajectories,
    )
