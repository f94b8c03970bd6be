"""The package's record of an episode, stored beside RLlib's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.added_texts import (
    AddedText,
    LaterTexts,
    TextSource,
    with_texts,
)
from rllib_llm.data.model_calls import ModelRequest
from rllib_llm.data.places import Path
from rllib_llm.data.types import (
    Candidate,
    FinishReason,
    Message,
    Prompt,
    StopPolicy,
    StopReason,
    Task,
    Turn,
)
from rllib_llm.pictures.contract import Pictures
from rllib_llm.pictures.placement import PictureRef

if TYPE_CHECKING:
    import numpy as np
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    from rllib_llm.types import Episode

SAMPLED = "sampled"  # in this iteration, or ahead for it
REPLAY = "replay"  # in an earlier iteration (docs/replay.md)
FILE = "file"  # written in a data file
PAIR = "pair"  # a pair of sampled episodes, for a preference loss
SOURCES = (SAMPLED, REPLAY, FILE, PAIR)


@dataclasses.dataclass(slots=True)
class Conversation:
    """An agent's conversation that is not the one of its last turn.

    Attributes:
        messages: The conversation as text.
        tools: JSON schemas of the tools that the chat template presents.
        ids: The conversation as tokens.
        images: Its pictures, with places in ``ids``.
    """

    messages: list[Message] = dataclasses.field(default_factory=list)
    tools: Sequence[dict[str, Any]] | None = None
    ids: list[int] = dataclasses.field(default_factory=list)
    images: list[PictureRef] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class EpisodeData:
    """Conversation state of a running episode, and its outcome once it has ended.

    Stored as one opaque object in ``episode.custom_data["llm"]``.

    Attributes:
        task: The rollout: its instance and group.
        first_texts: First observation of every text agent, by AgentID; set on the
            episode that holds the task.
        agent_index: Number of the agent in its environment's declared order.
        text_source: Source of texts before messages; None once it is not needed.
        added_texts: Texts that it has added.
        system: System message that replaces the configured one and the environment's.
        messages: The conversation as text, for people and environments.
        tools: JSON schemas of the tools that the chat template presents.
        ids: The conversation as tokens, as the engine saw and sampled them.
        images: Its pictures, with places in ``ids``.
        pictures: Pixels of all pictures of the episode by digest, each once. uint8
        conversation: Number of this conversation; an agent has several if a program
            starts them (docs/agent_programs.md).
        other_conversations: The agent's other conversations, by number.
        request: The program's request that the next turn answers, if there is one.
        prompt: Tokens to append before the next turn (None while none is due).
        is_over: Whether the episode has ended.
        sampled: Ids of the turn just sampled (None once they are decoded).
        sampled_logps: Their log-probabilities, in nats. float32 [T]
        last_finish: Reason that the last turn ended.
        num_turns: Turns so far.
        num_sampled: Sampled tokens so far.
        stop_reason: Reason that the episode ended.
        error: The environment's description of the failure that ended the episode.
        stop_policy: Treatment of the episode in training.
        success: Whether the task was solved, where that is defined.
        metrics: Numbers reported by the environment.
        masked_turns: Indices of turns that are not trained.
        greedy_return: Written by the driver: the agent's return in the greedy rollout
            of the task, if there was one.
        reward_parts: Written by the driver: reward of every component per turn, by
            name; empty if the environment's rewards are used alone.
        advantage: Written by the driver: one advantage per turn, or one for all turns.
        is_annotated: Whether a transcript shows the episode with its advantages.
        annotates_tokens: Whether the transcript shows the Learner's data per token.
        source: Origin of the episode, one of ``SOURCES``.
        path: Branches that sampled its turns: one, or several if it is a fork.
        inherited_tokens: Tokens that were sampled before its fork, by other episodes.
        candidates: Replies that were sampled and not played, by turn
            (rollouts(candidates=...)).
        candidate_scores: Written by the driver: their scores by turn, the played
            reply's last.
    """

    task: Task | None = None
    first_texts: dict[str, str] = dataclasses.field(default_factory=dict)
    agent_index: int = 0
    text_source: TextSource | None = None
    added_texts: tuple[AddedText, ...] = ()
    system: str | None = None
    messages: list[Message] = dataclasses.field(default_factory=list)
    tools: Sequence[dict[str, Any]] | None = None
    ids: list[int] = dataclasses.field(default_factory=list)
    images: list[PictureRef] = dataclasses.field(default_factory=list)
    pictures: Pictures = dataclasses.field(default_factory=dict)
    conversation: int = 0
    other_conversations: dict[int, Conversation] = dataclasses.field(
        default_factory=dict
    )
    request: ModelRequest | None = None
    prompt: Prompt | None = None
    is_over: bool = False
    sampled: list[int] | None = None
    sampled_logps: np.ndarray | None = None
    last_finish: FinishReason | None = None
    num_turns: int = 0
    num_sampled: int = 0
    stop_reason: StopReason | None = None
    error: str | None = None
    stop_policy: StopPolicy = StopPolicy.TRAIN
    success: bool | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    masked_turns: frozenset[int] = frozenset()
    greedy_return: float | None = None
    reward_parts: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    advantage: float | Sequence[float] | np.ndarray | None = None
    is_annotated: bool = False
    annotates_tokens: bool = False
    source: str = SAMPLED
    path: Path = ()
    inherited_tokens: int = 0
    seconds: float = 0.0
    candidates: dict[int, list[Candidate]] = dataclasses.field(default_factory=dict)
    candidate_scores: dict[int, list[float]] = dataclasses.field(default_factory=dict)

    def first_message(self, observation: str) -> str:
        """Return the first observation with the texts of the agent's source."""
        source = self.text_source
        if not isinstance(source, LaterTexts):
            self.text_source = None  # it may be a whole bank
        if source is None:
            return observation
        self.added_texts = tuple(source.texts_for(observation))
        texts = [added.text for added in self.added_texts]
        return with_texts(texts, observation, source.heading)

    def later_message(
        self, shown: str, observations: Sequence[str], replies: Sequence[str]
    ) -> str:
        """Return a later message with the texts of the agent's source.

        Args:
            shown: The message, of the last observation.
            observations: The agent's observations so far. [H + 1]
            replies: Its replies so far. [H]
        """
        source = self.text_source
        if source is None:
            return shown
        assert isinstance(source, LaterTexts)  # first_message dropped others
        added = source.texts_later(observations, replies)
        self.added_texts += tuple(added)
        return with_texts([each.text for each in added], shown, source.heading)

    @property
    def fork_turn(self) -> int:
        """Number of the first turn that the episode sampled itself; 0: all."""
        return self.path[-1].turn if self.path else 0

    @property
    def is_fork(self) -> bool:
        """True if the episode began at a place of another one."""
        return len(self.path) > 1

    @property
    def due_prompt(self) -> Prompt:
        """The prompt of the turn that is due, which env-to-module has rendered."""
        assert self.prompt is not None, "No prompt was rendered."
        return self.prompt

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all conversations."""
        others = self.other_conversations.values()
        return len(self.ids) + sum(len(other.ids) for other in others)

    def enter_conversation(self, number: int) -> None:
        """Make another conversation the current one; a new one is empty."""
        if number == self.conversation:
            return
        self.other_conversations[self.conversation] = Conversation(
            self.messages, self.tools, self.ids, self.images
        )
        other = self.other_conversations.pop(number, None) or Conversation()
        self.messages, self.tools, self.ids = other.messages, other.tools, other.ids
        self.images = other.images
        self.conversation = number

    def record(self, turn: Turn) -> None:
        """Append a sampled turn to the conversation's tokens."""
        sampled = turn.action_ids.tolist()
        # The prompt replaced the conversation so far instead of continuing it.
        if not turn.extends:
            self.ids, self.images = [], []
        self.images += [ref.moved(len(self.ids)) for ref in turn.images]
        self.ids += turn.prompt_ids.tolist()
        self.ids += sampled
        self.sampled, self.last_finish = sampled, turn.finish
        self.sampled_logps = turn.action_logps
        self.num_turns += 1
        self.num_sampled += len(sampled)
        self.prompt = None


def episode_data(episode: Episode) -> EpisodeData:
    """Return the episode's :class:`EpisodeData`, creating it on first use."""
    data = episode.custom_data.get(columns.EPISODE_DATA)
    if data is None:
        data = episode.custom_data[columns.EPISODE_DATA] = EpisodeData()
    return data


def task_of(episode: Episode) -> Task:
    """Return the task of an episode that an LLMEnvRunner samples."""
    task = episode_data(episode).task
    assert task is not None, "The episode has no task."
    return task


def agent_episodes(episode: Episode) -> list[SingleAgentEpisode]:
    """Return the parts of an episode that hold turns of language models.

    A SingleAgentEpisode is its only part. The parts of a MultiAgentEpisode come in the
    declared order of agents, without those that never acted or were scripted.
    """
    if getattr(episode, "agent_episodes", None) is None:
        return [episode]
    return [p for p in policy_episodes(episode) if episode_data(p).num_sampled]


def policy_episodes(episode: Episode) -> list[SingleAgentEpisode]:
    """Return the parts that policies acted in, non-LLM RLModules included."""
    parts = getattr(episode, "agent_episodes", None)
    if parts is None:
        return [episode]
    # RLlib keeps sets of agents; their order differs between processes.
    parts = sorted(parts.values(), key=lambda part: episode_data(part).agent_index)
    return [
        part
        for part in parts
        if len(part)
        if episode_data(part).num_sampled
        or Columns.ACTION_DIST_INPUTS in part.extra_model_outputs
    ]


def num_tokens(episode: Episode) -> int:
    """Return how many tokens the conversations of an episode have."""
    return sum(episode_data(part).num_tokens for part in agent_episodes(episode))
