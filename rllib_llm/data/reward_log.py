"""Log of rewards by step and agent, and what of it belongs to each turn."""

from __future__ import annotations

from typing import Any


def rewards_of_turns(turns: Any, rewards: list[tuple[int, float]]) -> list[float]:
    """Return the reward of each turn.

    Args:
        turns: An agent's Turn records in time order, at least one.
        rewards: Pairs of environment step and reward. A reward returned by step ``t``
            (1 is the first, 0 the reset) belongs to the last turn taken before it.
    """
    turn_rewards = [0.0] * len(turns)
    for env_t, reward in rewards:
        num_before = sum(turn.env_t < env_t for turn in turns)
        # A reward before the agent's first turn counts for the first turn.
        turn_rewards[max(0, num_before - 1)] += reward
    return turn_rewards
