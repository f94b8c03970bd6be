"""Bounds of an episode, and why its last turn was the last."""

from __future__ import annotations

import dataclasses
import math

from rllib_llm.data.types import FinishReason, StopPolicy, StopReason, Task
from rllib_llm.errors import EnvContractError


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Bounds of an episode (see ``LLMConfigMixin.rollouts``)."""

    max_tokens_per_episode: int | None
    max_turns: int | None
    step_timeout_s: float | None
    turn_timeout_s: float | None
    episode_timeout_s: float | None
    max_retries: int
    max_failed_fraction: float
    stop_policies: dict[StopReason, StopPolicy]


def stop_reason(
    limits: RolloutLimits,
    task: Task,
    *,
    turns: int,
    num_sampled: int,
    last_finish: FinishReason | None,
    terminated: bool,
    truncated: bool,
    given: str | None,
) -> tuple[bool, StopReason | None]:
    """Say whether a limit ends the episode after this turn, and why it ends if so.

    Args:
        limits: Bounds of an episode.
        task: What is played.
        turns: Environment steps so far, this one included.
        num_sampled: Tokens sampled in the episode so far.
        last_finish: Why the last turn ended.
        terminated: Whether the environment says that the task is over.
        truncated: Whether the environment cuts the episode short.
        given: The environment's own reason.

    Raises:
        EnvContractError: If that reason does not exist.
    """
    reason, by_limit = given, False
    if terminated:
        reason = given or StopReason.TERMINATED
    elif truncated:
        reason = given or StopReason.MAX_TURNS
    elif turns >= min(limits.max_turns or math.inf, task.max_turns or math.inf):
        by_limit, reason = True, StopReason.MAX_TURNS
    elif limits.max_tokens_per_episode and num_sampled >= limits.max_tokens_per_episode:
        by_limit, reason = True, StopReason.MAX_TOKENS_EPISODE
    if reason == StopReason.MAX_TURNS and last_finish is FinishReason.LENGTH:
        # The last word was cut off as well: say the more telling reason.
        reason = StopReason.MAX_TOKENS_TURN
    try:
        return by_limit, StopReason(reason) if reason else None
    except ValueError:
        known = ", ".join(r.value for r in StopReason)
        raise EnvContractError(
            f"The environment ended seed {task.seed} with the stop_reason {reason!r}; "
            f"info['stop_reason'] must be one of {known}."
        ) from None


def exceeds(value: float, limit: float | None) -> bool:
    """Say whether there is a limit and ``value`` is above it."""
    return limit is not None and value > limit
