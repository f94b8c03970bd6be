"""Rewards shared among the agents of an episode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllib_llm.data import columns
from rllib_llm.data.reward_log import rewards_of_turns


def share_rewards(episodes: Iterable[Any], share: float) -> None:
    """Replace every reward by a mixture of the agent's and the team's.

    An agent gets ``(1 - share) * own + share * mean over agents`` of the rewards of
    each environment step: 0 is individual, 1 the team's reward, and values between are
    the mixture of AT-GRPO (arXiv:2510.11062) and CORY. The sum over agents is
    unchanged.

    Args:
        episodes: Multi-agent episodes; other episodes are left unchanged.
        share: Share of the team's mean, in [0, 1].
    """
    for episode in episodes:
        parts = getattr(episode, "agent_episodes", {})
        # Agents that never acted get no share: they have no turn to hold it.
        acting = {a: p for a, p in parts.items() if len(p)}
        for agent, part in acting.items():
            turns = part.get_extra_model_outputs(columns.TURN)
            # From the log and not from the turns' rewards: agents share rewards of
            # steps in which they did not act, too.
            shared_log = [
                (t, reward * ((1 - share) * (receiver == agent) + share / len(acting)))
                for t, receiver, reward in episode.custom_data[columns.REWARD_LOG]
            ]
            part.set_rewards(new_data=rewards_of_turns(turns, shared_log))
