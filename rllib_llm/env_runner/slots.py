"""A place for one running episode, and what speaks for its agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rllib_llm.data.types import Task
from rllib_llm.env_runner.env_worker import EnvWorker


@dataclasses.dataclass(slots=True)
class ActionSource:
    """How a policy makes turns.

    Attributes:
        engine: Samples them; None for all others.
        script: Text in, text out: called with a ``ScriptedTurn``; None otherwise.
        actor: The NonLLMActor of an RLModule that reads numbers; None otherwise.
        chooser: The ActionScorer of a policy that chooses among the admissible
            actions; None otherwise.
        max_new_tokens: Most tokens of a turn.
        max_context_tokens: Most tokens of a conversation.
        max_tokens_per_episode: Most sampled tokens of an episode, over all agents;
            those that speak at the same time may each use what is left.
        sampling: Keyword arguments of SamplingParams except seed and length.
        open_settings: Keyword arguments of the engine's ``open``.
    """

    engine: Any = None
    script: Callable[[Any], str] | None = None
    actor: Any = None
    action_scorer: Any = None
    max_new_tokens: int = 1
    max_context_tokens: int = 2
    max_tokens_per_episode: int | None = None
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict)
    open_settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def least_tokens(self, agent_state: Any) -> int:
        """Return the room that the seat's turn needs behind its prompt."""
        return (
            1
            if self.action_scorer is None
            else self.action_scorer.least_tokens(agent_state)
        )

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
    """One place for a running episode, with its environment's thread.

    Attributes:
        index: Its number.
        worker: Owns the environment.
        task: What is played.
        attempt: How often it was tried before.
        play: The running episode; None while the slot is free.
        waiting_for: "reset", "step", "engine", or None while the slot is free.
        num_silent: Seats that have yet to speak before the environment goes on.
        since: When that wait began, in seconds of ``time.perf_counter``.
        started: When the episode began.
        generation: Rises whenever the slot is given up; stale replies are old.
    """

    index: int
    worker: EnvWorker
    task: Task | None = None
    attempt: int = 0
    play: Any = None
    waiting_for: str | None = None
    num_silent: int = 0
    since: float = 0.0
    started: float = 0.0
    generation: int = 0
