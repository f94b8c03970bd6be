"""The right answers of a task as text that a privileged scorer reads."""

from __future__ import annotations

from typing import Any

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data.episode_data import task_of
from rllib_llm.data.turn_table import MissingInfo
from rllib_llm.rewards.text_features import as_texts

HEADING = "Right answer: "


def hidden_tokens(episode: Any, renderer: ChatRenderer) -> list[int]:
    """Return the tokens of a line with the right answers of an episode's task.

    Args:
        episode: An episode with infos, the last of which has ``gold_answers``.
        renderer: Renders conversations.

    Raises:
        MissingInfo: The environment names no right answers.
    """
    answers = as_texts(episode.get_infos()[-1].get("gold_answers"))
    if not answers:
        raise MissingInfo(
            "scorer.privileged=True needs the right answers of a task, but the task of "
            f"seed {task_of(episode).seed} has no info['gold_answers']. Let the "
            "environment give them, or leave scorer.privileged out."
        )
    text = f"{HEADING}{' / '.join(answers)}\n"
    ids: list[int] = renderer.tokenizer.encode(text, add_special_tokens=False)
    return ids
