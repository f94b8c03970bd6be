"""Limits of an episode and its stop reason."""

from __future__ import annotations

import dataclasses
import math

from rllib_llm.data.types import FinishReason, StopPolicy, StopReason, Task
from rllib_llm.errors import EnvContractError


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of an episode (see ``LLMConfigMixin.rollouts``).

    Timeouts are in seconds; None means no limit.
    """

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
    """Return whether a limit ends the episode after this turn, and the stop reason.

    Args:
        limits: Limits of the episode.
        task: The episode's task, whose ``max_turns`` counts as well.
        turns: Environment steps so far, this one included.
        num_sampled: Tokens sampled in the episode so far.
        last_finish: Finish reason of the last turn.
        terminated: Whether the environment terminated the episode.
        truncated: Whether the environment truncated the episode.
        given: The environment's ``info["stop_reason"]``.

    Returns:
        Whether a limit of the run, and not the environment, ends the episode; and the
        stop reason, None if the episode continues.

    Raises:
        EnvContractError: If ``given`` is not a StopReason.
    """
    reason, by_limit = given, False
    # The environment's end has precedence: an episode that terminates in its last
    # allowed turn is not truncated.
    if terminated:
        reason = given or StopReason.TERMINATED
    elif truncated:
        reason = given or StopReason.MAX_TURNS
    elif turns >= min(limits.max_turns or math.inf, task.max_turns or math.inf):
        by_limit, reason = True, StopReason.MAX_TURNS
    elif limits.max_tokens_per_episode and num_sampled >= limits.max_tokens_per_episode:
        by_limit, reason = True, StopReason.MAX_TOKENS_EPISODE
    if reason == StopReason.MAX_TURNS and last_finish is FinishReason.LENGTH:
        # The last turn was cut off at its token limit too. That is the more useful
        # diagnosis: raising max_turns would not help.
        reason = StopReason.MAX_TOKENS_TURN
    try:
        return by_limit, StopReason(reason) if reason else None
    except ValueError:
        reasons = ", ".join(r.value for r in StopReason)
        raise EnvContractError(
            f"The environment ended seed {task.seed} with the stop_reason {reason!r}; "
            f"info['stop_reason'] must be one of {reasons}. Return one of these, or "
            "leave the key out."
        ) from None


def exceeds(value: float, limit: float | None) -> bool:
    """Return whether ``value`` is above ``limit``; False without a limit."""
    return limit is not None and value > limit
