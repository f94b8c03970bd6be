"""Slots of running episodes and the action sources of their agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rllib_llm.data.places import Place
from rllib_llm.data.types import Task
from rllib_llm.env_runner.env_worker import EnvWorker

if TYPE_CHECKING:
    from rllib_llm.env_runner.recorder import AgentState


@dataclasses.dataclass(slots=True)
class ActionSource:
    """Source of a policy's turns; exactly one of the first four attributes is set.

    Attributes:
        engine: Generation engine that samples the turns.
        script: Scripted policy, called with a ``ScriptedTurn``.
        actor: NonLLMActor of an RLModule that reads numbers.
        action_scorer: ActionScorer that chooses among the admissible actions.
        max_new_tokens: Maximum tokens of a turn.
        max_context_tokens: Maximum tokens of a conversation.
        max_tokens_per_episode: Maximum sampled tokens of an episode, over all agents;
            agents that act at the same time may each use the full remainder.
        sampling: Keyword arguments of SamplingParams except seed and length.
        open_settings: Keyword arguments of the engine's ``open``.
        candidates: Replies that are sampled at each turn; one of them is played.
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
    candidates: int = 1

    def least_tokens(self, agent_state: AgentState) -> int:
        """Return the tokens that the context must hold after the agent's prompt."""
        return (
            1
            if self.action_scorer is None
            else self.action_scorer.least_tokens(agent_state)
        )

    def turn_budget(self, length: int, num_sampled: int) -> int:
        """Return the maximum tokens of the next turn, at least 1.

        Args:
            length: Tokens of the conversation, its prompt included.
            num_sampled: Tokens sampled in the episode so far.
        """
        # At least one token even over the episode's limit: agents that act at the same
        # time share the remainder, and a turn without tokens cannot be trained. The
        # limit then ends the episode.
        room, left = self.max_context_tokens - length, self.max_tokens_per_episode
        return min(
            self.max_new_tokens, room, max(1, left - num_sampled) if left else room
        )


@dataclasses.dataclass(slots=True)
class Slot:
    """Slot for one running episode, with its environment's thread.

    Attributes:
        index: Its number.
        worker: Thread of the environment.
        task: Task of the episode.
        task_index: Index of the task in the run.
        attempt: Number of earlier attempts at the task.
        recorder: Recorder of the episode; None while the slot is free.
        waiting_for: "reset", "step", "engine", or None while the slot is free.
        num_pending: Agents that must still act before the environment steps.
        since: Start of the current wait, in seconds of ``time.perf_counter``.
        started: Start of the episode, on the same clock.
        is_quick: Whether the environment's last call was so short that the loop waits
            for the reply to the next one.
        generation: Incremented whenever the slot is freed, so that late replies to an
            earlier episode can be recognised.
        sessions: The episode's open sessions, and the engine of each.
        num_forks: Episodes to fork at ``place`` once the environment has replied.
        place: The place before the last turn, if episodes are forked there.
        consecutive: Number of places in a row at which the episode was forked.
    """

    index: int
    worker: EnvWorker
    task: Task | None = None
    task_index: int = 0
    attempt: int = 0
    recorder: Any = None
    waiting_for: str | None = None
    num_pending: int = 0
    since: float = 0.0
    started: float = 0.0
    is_quick: bool = False
    generation: int = 0
    sessions: dict[Any, Any] = dataclasses.field(default_factory=dict)
    num_forks: int = 0
    place: Place | None = None
    consecutive: int = 0
