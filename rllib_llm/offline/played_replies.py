"""Replies that are played in an environment, as messages of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllib_llm.offline.corrections import Row


def play_on(env: Any, replies: Sequence[str]) -> list[Row] | None:
    """Play replies from where the environment is.

    Args:
        env: An environment of one agent, in the course of an episode.
        replies: Texts of the agent, to the end of the episode.

    Returns:
        The replies and what the environment says after each but the last; None if the
        task is not solved by exactly these replies: by ``success`` or, without it, a
        positive sum of their rewards.
    """
    messages: list[Row] = []
    total = 0.0
    for number, reply in enumerate(replies, start=1):
        text, reward, terminated, truncated, info = env.step(reply)
        total += float(reward)
        messages.append({"role": "assistant", "content": reply})
        if terminated or truncated:
            success = info.get("success")
            is_solved = total > 0 if success is None else success
            return messages if is_solved and number == len(replies) else None
        messages.append({"role": "user", "content": text})
    return None
