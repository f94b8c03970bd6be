"""What the package keeps about an episode beside RLlib's own record."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm import columns
from rllib_llm.connectors.chat import Prompt
from rllib_llm.types import FinishReason, Message, StopPolicy, StopReason, Task, Turn


@dataclasses.dataclass(slots=True)
class EpisodeData:
    """Conversation state while an episode runs, and its verdict when it ends.

    Stored as one opaque object in ``episode.custom_data["llm"]``.

    Attributes:
        task: Which instance and group this is.
        messages: The conversation as text, for people and environments.
        ids: The conversation as tokens, as the engine saw and sampled them.
        prompt: Tokens to append before the next turn (None while none is due).
        is_over: Whether the episode has ended.
        sampled: Ids of the turn just sampled (until its text is made).
        last_finish: Why the last turn ended.
        num_sampled: Sampled tokens so far.
        stop_reason: Why the episode ended.
        stop_policy: What the learner makes of it.
        success: Whether the task was solved, where that is defined.
        invalid_actions: Turns in which no action could be parsed.
        metrics: The environment's own numbers.
        advantage: Written by the driver: credit per turn, or one for the episode.
    """

    task: Task | None = None
    messages: list[Message] = dataclasses.field(default_factory=list)
    ids: list[int] = dataclasses.field(default_factory=list)
    prompt: Prompt | None = None
    is_over: bool = False
    sampled: list[int] | None = None
    last_finish: FinishReason | None = None
    num_sampled: int = 0
    stop_reason: StopReason | None = None
    stop_policy: StopPolicy = StopPolicy.TRAIN
    success: bool | None = None
    invalid_actions: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    advantage: float | None = None
    seconds: float = 0.0

    def record(self, turn: Turn) -> None:
        """Append a sampled turn to the conversation's tokens."""
        sampled = turn.action_ids.tolist()
        if not turn.extends:
            self.ids = []
        self.ids += turn.prompt_ids.tolist()
        self.ids += sampled
        self.sampled, self.last_finish = sampled, turn.finish
        self.num_sampled += len(sampled)
        self.prompt = None


def episode_data(episode: Any) -> EpisodeData:
    """Return the episode's :class:`EpisodeData`, creating it on first use."""
    data = episode.custom_data.get(columns.EPISODE_DATA)
    if data is None:
        data = episode.custom_data[columns.EPISODE_DATA] = EpisodeData()
    return data
