"""Places of episodes, at which other episodes begin (forks)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_llm.data.episode_data import EpisodeData
    from rllib_llm.data.types import Message, Turn


@dataclasses.dataclass(frozen=True, slots=True)
class Branch:
    """Part of an episode's path: the rollout that sampled its turns from one on.

    Attributes:
        turn: Number of the first of these turns.
        rollout: Number of the rollout in its group.
        attempt: Number of the rollout's attempts before this one.
    """

    turn: int
    rollout: int
    attempt: int = 0


Path = tuple[Branch, ...]
"""Branches of an episode, from the prompt on; their turns increase."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A place of an episode: an observation that a policy is about to answer.

    Several episodes may begin here. Turn records are shared, not copied: nothing
    changes them once their environment has replied.

    Attributes:
        path: Branches that sampled the turns before it.
        observations: Texts up to here, this one included. [t+1]
        infos: The environment's info with each. [t+1]
        actions: Texts that the environment received. [t]
        rewards: Their rewards. [t]
        turns: Their token records. [t]
        messages: The conversation before this observation.
        system: System message that the environment chose.
        tools: JSON schemas of the tools that the chat template presents.
        consecutive: Number of places in a row that were forked, up to here.
        state: The environment's ``snapshot()``; None: the actions are played again.
    """

    path: Path
    observations: tuple[str, ...]
    infos: tuple[dict[str, Any], ...]
    actions: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    system: str | None = None
    tools: Any = None
    consecutive: int = 0
    state: bytes | None = None

    @property
    def turn(self) -> int:
        """Number of the turn that follows."""
        return len(self.turns)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled before this place."""
        return sum(len(turn.action_ids) for turn in self.turns)

    @property
    def seed_parts(self) -> tuple[Any, ...]:
        """Parts of a seed that identify the place within its group."""
        return ("fork", self.turn, *map(dataclasses.astuple, self.path))


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
    replies = [i for i, m in enumerate(data.messages) if m["role"] == "assistant"]
    # The last ones: an environment's opening may contain replies, too.
    replies = replies[len(replies) - data.num_turns :]
    observations = [str(text) for text in episode.get_observations()]
    return Place(
        path=tuple(branch for branch in data.path if branch.turn < turn),
        observations=tuple(observations[: turn + 1]),
        infos=tuple(episode.get_infos()[: turn + 1]),
        actions=tuple(str(action) for action in episode.get_actions()[:turn]),
        rewards=tuple(float(reward) for reward in episode.get_rewards()[:turn]),
        turns=tuple(episode.get_extra_model_outputs(columns.TURN)[:turn])
        if turn
        else (),
        messages=tuple(data.messages[: replies[turn - 1] + 1]) if turn else (),
        system=data.system,
        tools=data.tools if turn else None,
        consecutive=consecutive,
    )
