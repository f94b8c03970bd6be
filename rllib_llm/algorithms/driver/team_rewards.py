"""Dividing what agents earn before anything is learnt from it."""

from __future__ import annotations

from typing import Any

from rllib_llm.data import columns
from rllib_llm.env_runner.multi_agent_recorder import rewards_of_turns


def share_rewards(episodes: list[Any], share: float) -> None:
    """Let all agents of an episode divide a share of every reward.

    An agent gets ``(1 - share) * own + share * mean over agents`` of what is paid in
    each environment step: 0 is individual, 1 the team's reward, and what lies between
    the mixture of AT-GRPO (arXiv:2510.11062) and CORY. The sum over agents stays.

    Args:
        episodes: Multi-agent episodes; others stay as they are.
        share: In [0, 1].
    """
    for episode in episodes:
        parts = getattr(episode, "agent_episodes", {})
        acting = {a: p for a, p in parts.items() if len(p)}
        for agent, part in acting.items():
            turns = part.get_extra_model_outputs(columns.TURN)
            paid = [
                (t, reward * ((1 - share) * (to == agent) + share / len(acting)))
                for t, to, reward in episode.custom_data[columns.REWARD_LOG]
            ]
            part.set_rewards(new_data=rewards_of_turns(turns, paid))
