"""What the package keeps about an episode beside RLlib's own record."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ray.rllib.core.columns import Columns

from rllib_llm.connectors.chat import Prompt
from rllib_llm.data import columns
from rllib_llm.data.types import (
    FinishReason,
    Message,
    StopPolicy,
    StopReason,
    Task,
    Turn,
)


@dataclasses.dataclass(slots=True)
class EpisodeData:
    """Conversation state while an episode runs, and its verdict when it ends.

    Stored as one opaque object in ``episode.custom_data["llm"]``.

    Attributes:
        task: Which instance and group this is.
        first_texts: What agents of text read at first, by AgentID; on the episode
            that holds the task.
        agent_index: Number of the agent in its environment's declared order.
        system: System message in place of the settings' and the environment's.
        messages: The conversation as text, for people and environments.
        tools: JSON schemas of the tools that the chat template presents.
        ids: The conversation as tokens, as the engine saw and sampled them.
        prompt: Tokens to append before the next turn (None while none is due).
        is_over: Whether the episode has ended.
        sampled: Ids of the turn just sampled (until its text is made).
        last_finish: Why the last turn ended.
        num_turns: Turns so far.
        num_sampled: Sampled tokens so far.
        stop_reason: Why the episode ended.
        stop_policy: What the learner makes of it.
        success: Whether the task was solved, where that is defined.
        metrics: The environment's own numbers.
        masked_turns: Turns that are not learnt from, by their number.
        greedy_return: Written by the driver: what its agent earned in the greedy
            rollout of the task, where one was played.
        reward_parts: Written by the driver: what each piece paid per turn, by name,
            where rewards are not the environment's alone.
        advantage: Written by the driver: credit per turn, or one for the episode.
        is_annotated: Whether a transcript shows it, and wants to know its credit.
        annotates_tokens: Whether it shows tokens, and what the Learner makes of each.
    """

    task: Task | None = None
    first_texts: dict[str, str] = dataclasses.field(default_factory=dict)
    agent_index: int = 0
    system: str | None = None
    messages: list[Message] = dataclasses.field(default_factory=list)
    tools: Sequence[dict[str, Any]] | None = None
    ids: list[int] = dataclasses.field(default_factory=list)
    prompt: Prompt | None = None
    is_over: bool = False
    sampled: list[int] | None = None
    last_finish: FinishReason | None = None
    num_turns: int = 0
    num_sampled: int = 0
    stop_reason: StopReason | None = None
    stop_policy: StopPolicy = StopPolicy.TRAIN
    success: bool | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    masked_turns: frozenset[int] = frozenset()
    greedy_return: float | None = None
    reward_parts: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    advantage: float | Sequence[float] | None = None
    is_annotated: bool = False
    annotates_tokens: bool = False
    seconds: float = 0.0

    def record(self, turn: Turn) -> None:
        """Append a sampled turn to the conversation's tokens."""
        sampled = turn.action_ids.tolist()
        if not turn.extends:
            self.ids = []
        self.ids += turn.prompt_ids.tolist()
        self.ids += sampled
        self.sampled, self.last_finish = sampled, turn.finish
        self.num_turns += 1
        self.num_sampled += len(sampled)
        self.prompt = None


def episode_data(episode: Any) -> EpisodeData:
    """Return the episode's :class:`EpisodeData`, creating it on first use."""
    data = episode.custom_data.get(columns.EPISODE_DATA)
    if data is None:
        data = episode.custom_data[columns.EPISODE_DATA] = EpisodeData()
    return data


def agent_episodes(episode: Any) -> list[Any]:
    """Return the parts of an episode that hold turns of language models.

    A SingleAgentEpisode is its own only part; in a MultiAgentEpisode agents that never
    acted, and those that a script played, are left out. In declared order of agents.
    """
    if getattr(episode, "agent_episodes", None) is None:
        return [episode]
    return [p for p in policy_episodes(episode) if episode_data(p).num_sampled]


def policy_episodes(episode: Any) -> list[Any]:
    """Return the like with the parts that classic RLModules played."""
    parts = getattr(episode, "agent_episodes", None)
    if parts is None:
        return [episode]
    # RLlib keeps sets of agents; their order changes from process to process.
    parts = sorted(parts.values(), key=lambda part: episode_data(part).agent_index)
    return [
        part
        for part in parts
        if len(part)
        if episode_data(part).num_sampled
        or Columns.ACTION_DIST_INPUTS in part.extra_model_outputs
    ]


def num_tokens(episode: Any) -> int:
    """Return how many tokens the conversations of an episode have."""
    return sum(len(episode_data(part).ids) for part in agent_episodes(episode))
