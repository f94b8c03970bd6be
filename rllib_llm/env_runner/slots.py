"""A running episode's place, its bounds, and why its last turn was the last."""

from __future__ import annotations

import dataclasses

from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.connectors.episode_data import EpisodeData
from rllib_llm.env_runner.env_worker import EnvWorker
from rllib_llm.errors import EnvContractError
from rllib_llm.types import FinishReason, StopPolicy, StopReason, Task, Turn


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Bounds of an episode (see ``LLMConfigMixin.rollouts`` and ``.generation``)."""

    max_new_tokens: int
    max_context_tokens: int
    max_tokens_per_episode: int | None
    max_turns: int | None
    step_timeout_s: float | None
    turn_timeout_s: float | None
    episode_timeout_s: float | None
    max_retries: int
    max_failed_fraction: float
    stop_policies: dict[StopReason, StopPolicy]

    def turn_budget(self, length: int, num_sampled: int) -> int:
        """Return the most tokens of the next turn, at least 1.

        Args:
            length: Tokens of the conversation, its prompt included.
            num_sampled: Tokens sampled in the episode so far.
        """
        room, left = self.max_context_tokens - length, self.max_tokens_per_episode
        return min(
            self.max_new_tokens, room, max(1, left - num_sampled) if left else room
        )


@dataclasses.dataclass(slots=True)
class Slot:
    """One place for a running episode, with its environment's thread."""

    index: int
    worker: EnvWorker
    task: Task | None = None
    attempt: int = 0
    episode: SingleAgentEpisode | None = None
    data: EpisodeData = dataclasses.field(default_factory=EpisodeData)
    action: str = ""
    turn: Turn | None = None
    request_id: int | None = None
    waiting_for: str | None = None  # "reset" | "step" | "engine" | None (free)
    since: float = 0.0
    started: float = 0.0
    generation: int = 0  # rises whenever the slot is given up; stale replies are old


def stop_reason(
    slot: Slot,
    limits: RolloutLimits,
    terminated: bool,
    truncated: bool,
    given: str | None,
) -> tuple[bool, StopReason | None]:
    """Say whether a limit ends the episode after this turn, and why it ends if so.

    Args:
        slot: Where the episode runs, the turn not yet added to it.
        limits: Bounds of an episode.
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
    elif limits.max_turns and len(slot.episode) + 1 >= limits.max_turns:
        by_limit, reason = True, StopReason.MAX_TURNS
    elif (
        limits.max_tokens_per_episode
        and slot.data.num_sampled >= limits.max_tokens_per_episode
    ):
        by_limit, reason = True, StopReason.MAX_TOKENS_EPISODE
    if reason == StopReason.MAX_TURNS and slot.data.last_finish is FinishReason.LENGTH:
        # The last word was cut off as well: say the more telling reason.
        reason = StopReason.MAX_TOKENS_TURN
    try:
        return by_limit, StopReason(reason) if reason else None
    except ValueError:
        raise EnvContractError(
            f"The environment ended seed {slot.task.seed} with the stop_reason "
            f"{reason!r}; info['stop_reason'] must be one of "
            f"{', '.join(r.value for r in StopReason)}."
        ) from None


def exceeds(value: float, limit: float | None) -> bool:
    """Say whether there is a limit and ``value`` is above it."""
    return limit is not None and value > limit
