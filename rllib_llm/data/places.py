"""Places of episodes, at which other episodes begin (forks)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_llm.data.episode_data import EpisodeData
    from rllib_llm.data.types import Message, Turn
    from rllib_llm.envs.multi_agent_adapter import MultiAgentStep
    from rllib_llm.pictures.contract import Pictures


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """Part of an episode's path: the rollout that sampled its turns from one on.

    Attributes:
        turn: Number of the first of these turns; of several agents the environment's
            step.
        rollout: Number of the rollout in its group.
        attempt: Number of the rollout's attempts before this one.
    """

    turn: int
    rollout: int
    attempt: int = 0


Path = tuple[Branch, ...]
"""Branches of an episode, from the prompt on; their turns increase."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlaceInGroup:
    """A place of an episode: observations that policies are about to answer.

    Several episodes may begin here. Turn records are shared, not copied: nothing
    changes them once their environment has replied.

    Attributes:
        path: Branches that sampled the turns before it.
        consecutive: Number of places in a row that were forked, up to here.
        state: The environment's ``snapshot()``; None: the actions are played again.
    """

    path: Path
    consecutive: int = 0
    state: bytes | None = None

    @property
    def turn(self) -> int:
        """Number of the environment's step that follows."""
        raise NotImplementedError

    @property
    def seed_parts(self) -> tuple[Any, ...]:
        """Parts of a seed that identify the place within its group."""
        return ("fork", self.turn, *map(dataclasses.astuple, self.path))


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Place(PlaceInGroup):
    """A place of an episode with one agent.

    Attributes:
        observations: Texts up to here, this one included. [t+1]
        infos: The environment's info with each. [t+1]
        actions: Texts that the environment received. [t]
        rewards: Their rewards. [t]
        turns: Their token records. [t]
        messages: The conversation before this observation.
        system: System message that the environment chose.
        tools: JSON schemas of the tools that the chat template presents.
        pictures: Pixels of the pictures that infos and turns name, by digest.
    """

    observations: tuple[str, ...]
    infos: tuple[dict[str, Any], ...]
    actions: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    system: str | None = None
    tools: Any = None
    pictures: Pictures = dataclasses.field(default_factory=dict)

    @property
    def turn(self) -> int:
        """Number of the turn that follows."""
        return len(self.turns)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled before this place."""
        return sum(len(turn.action_ids) for turn in self.turns)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Move:
    """An agent's turn and its action.

    Attributes:
        turn: The turn.
        action: Its action as the environment received it.
        recorded: Its action in RLlib's record if it differs, otherwise None.
        outputs: Extra model outputs, for RLlib's record.
    """

    turn: Turn
    action: Any
    recorded: Any
    outputs: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Context:
    """An agent's conversation at a place.

    Attributes:
        messages: Messages up to its last reply.
        system: System message that the environment chose.
        tools: JSON schemas of the tools that the chat template presents.
    """

    messages: tuple[Message, ...]
    system: str | None
    tools: Any


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MultiAgentPlace(PlaceInGroup):
    """A place of an episode with several agents, before a step of the environment.

    Attributes:
        replies: The environment's replies up to here, that of ``reset`` first. [t+1]
        moves: Moves of the agents in each step, by AgentID. [t]
        contexts: Conversation of each agent that has acted, by AgentID.
    """

    replies: tuple[MultiAgentStep, ...]
    moves: tuple[dict[str, Move], ...] = ()
    contexts: dict[str, Context] = dataclasses.field(default_factory=dict)

    @property
    def turn(self) -> int:
        """Number of the environment's step that follows."""
        return len(self.moves)

    @property
    def actions(self) -> tuple[dict[str, Any], ...]:
        """Arguments of the environment's steps. [t]"""
        return tuple(
            {agent: move.action for agent, move in moves.items()}
            for moves in self.moves
        )

    @property
    def observations(self) -> tuple[dict[str, Any], ...]:
        """Observations of the agents that had to act next, by AgentID. [t+1]"""
        return tuple(reply.observations for reply in self.replies)


def messages_before(data: EpisodeData, turns: int) -> tuple[Message, ...]:
    """Return the messages up to the reply of the last of so many turns.

    Args:
        data: The package's record of an agent's episode, running or finished.
        turns: Number of turns, at most those that were sampled.
    """
    if not turns:
        return ()
    replies = [i for i, m in enumerate(data.messages) if m["role"] == "assistant"]
    # The last ones: an environment's opening may contain replies, too.
    replies = replies[len(replies) - data.num_turns :]
    return tuple(data.messages[: replies[turns - 1] + 1])


def place_of(
    episode: Any, data: EpisodeData, turn: int, *, consecutive: int = 0
) -> Place:
    """Return the place before a turn of an episode.

    Args:
        episode: RLlib's SingleAgentEpisode, running or finished.
        data: The package's record of it.
        turn: Number of the turn, at most that of the turn that is being sampled.
        consecutive: Number of places in a row that were forked, this one included.
    """
    from rllib_llm.data import columns

    # The environment has replied to fewer turns than were sampled, if one is running.
    observations = [str(text) for text in episode.get_observations()]
    return Place(
        path=path_before(data, turn),
        observations=tuple(observations[: turn + 1]),
        infos=tuple(episode.get_infos()[: turn + 1]),
        actions=tuple(str(action) for action in episode.get_actions()[:turn]),
        rewards=tuple(float(reward) for reward in episode.get_rewards()[:turn]),
        turns=tuple(episode.get_extra_model_outputs(columns.TURN)[:turn])
        if turn
        else (),
        messages=messages_before(data, turn),
        system=data.system,
        tools=data.tools if turn else None,
        pictures=dict(data.pictures),
        consecutive=consecutive,
    )


def path_before(data: EpisodeData, turn: int) -> Path:
    """Return the branches of an episode that sampled the turns before one."""
    return tuple(branch for branch in data.path if branch.turn < turn)
