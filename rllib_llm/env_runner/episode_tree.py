"""Trees of episodes: places of finished ones, at which others may begin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Place, place_of
from rllib_llm.forks import search_tree
from rllib_llm.forks.search_tree import SampledTurn, TreePlace, TreeTurn

if TYPE_CHECKING:
    from rllib_llm.env_runner.multi_agent_recorder import MultiAgentRecorder

MAX_REVISITS = 100
"""Simulations in a row that may end in the tree, before one begins at the prompt."""


class TreeRule(Protocol):
    """A fork rule that chooses places in the tree of a group's finished episodes."""

    @property
    def gamma(self) -> float:
        """Discount per turn of the returns."""

    @property
    def backup(self) -> str:
        """Value of a turn: "mean" or "max" of the returns from it on."""

    def path(self, root: TreePlace) -> list[TreeTurn]:
        """Return the turns from the prompt to where the tree grows."""


def chooses_in_tree(rule: object) -> bool:
    """Return whether a fork rule chooses places among finished episodes."""
    return hasattr(rule, "path")


@dataclasses.dataclass(slots=True)
class PlayedTurn:
    """A turn of a sampled episode, from which the place after it can be made.

    Attributes:
        episode: The episode.
        turn: The turn's number; with several agents that of the environment's step.
        before: Record of the turn before it in the tree; None: the prompt.
        place: The place after it, once episodes have begun there.
        team: Recorder of the episode if it has several agents.
    """

    episode: Any
    turn: int
    before: PlayedTurn | None
    place: Place | None = None
    team: MultiAgentRecorder | None = None

    def place_after(self) -> Any:
        """Return the Place, or MultiAgentPlace, after the turn, without a snapshot."""
        if self.team is not None:
            return self.team.place(self.turn + 1)
        return place_of(self.episode, episode_data(self.episode), self.turn + 1)


def turns_of(episode: Any, before: PlayedTurn | None) -> Iterator[SampledTurn]:
    """Yield the turns that an episode sampled itself.

    Equal keys mean: the environment parsed the same action (without a parser: received
    the same text), returned the same text, and the episode ended or went on in both.

    Args:
        episode: A finished episode.
        before: The turn before its own first one; None: the prompt.
    """
    observations, infos = episode.get_observations(), episode.get_infos()
    records = episode.get_extra_model_outputs(columns.TURN)
    actions, rewards = episode.get_actions(), episode.get_rewards()
    for turn in range(episode_data(episode).fork_turn, len(episode)):
        parsed = infos[turn + 1].get("parsed_action")
        action = actions[turn] if parsed is None else parsed
        is_last = turn == len(episode) - 1
        before = PlayedTurn(episode, turn, before)
        logps = records[turn].action_logps
        yield SampledTurn(
            key=(repr(action), observations[turn + 1], is_last),
            reward=float(rewards[turn]),
            logp=float(np.mean(logps)) if len(logps) else 0.0,
            is_last=is_last,
            data=before,
        )


def steps_of(
    recorder: MultiAgentRecorder, before: PlayedTurn | None
) -> Iterator[SampledTurn]:
    """Yield the steps of the environment that an episode of agents sampled itself.

    The turns of agents that act at once are one. Its reward is the sum over all agents;
    what ``reset`` gave is the same in all episodes of a group, and in none of them.
    Equal keys mean: each agent's action was parsed alike, the agents that act next read
    the same, and the episode ended or went on in both.

    Args:
        recorder: Recorder of a finished episode of several agents.
        before: The step before its own first one; None: the prompt.
    """
    episode = recorder.episode
    whole = recorder.place(recorder.env_t)
    for step in range(episode_data(episode).fork_turn, whole.turn):
        moves, reply = whole.moves[step], whole.replies[step + 1]
        actions = []
        for agent, move in sorted(moves.items()):
            parsed = reply.infos.get(agent, {}).get("parsed_action")
            actions.append((agent, repr(move.action if parsed is None else parsed)))
        is_last = step == whole.turn - 1
        before = PlayedTurn(episode, step, before, team=recorder)
        logps = np.concatenate([move.turn.action_logps for move in moves.values()])
        yield SampledTurn(
            key=(tuple(actions), tuple(sorted(reply.observations.items())), is_last),
            reward=float(sum(reward for _, reward in reply.rewards)),
            logp=float(logps.mean()) if len(logps) else 0.0,
            is_last=is_last,
            data=before,
        )


class GroupTrees:
    """Trees of the groups that are being sampled: one episode of each at a time.

    The place of a group's next episode depends on its earlier episodes alone.

    Args:
        rule: Chooses where a tree grows.
    """

    def __init__(self, rule: TreeRule) -> None:
        self._rule = rule
        self._roots: dict[int, TreePlace] = {}
        self._paths: dict[int, list[TreeTurn]] = {}

    def next_place(self, group: int) -> tuple[Place | None, int]:
        """Return where a group's next episodes begin, and how many.

        A simulation that ends in the tree samples nothing: it is counted, and the next
        one is tried. A tree that has nothing left to sample begins at the prompt again.

        Args:
            group: Id of the group.

        Returns:
            The place, None for the prompt, and 1.
        """
        root = self._roots.setdefault(group, TreePlace())
        for _ in range(MAX_REVISITS):
            path = self._rule.path(root)
            if not path or path[-1].after is not None:
                self._paths[group] = path
                return (path[-1].data.place_after() if path else None), 1
            self._back_up(path)
        self._paths[group] = []
        return None, 1

    def add(self, group: int, recorder: Any) -> None:
        """Add the episode that began at the place last chosen, or at the prompt.

        Args:
            group: Id of the group.
            recorder: The finished episode's recorder.
        """
        episode = recorder.episode
        root = self._roots.setdefault(group, TreePlace())
        path = self._paths.pop(group, [])
        grown = (path[-1].after if path else None) or root
        before = path[-1].data if path else None
        is_team = hasattr(episode, "agent_episodes")
        turns = steps_of(recorder, before) if is_team else turns_of(episode, before)
        new = search_tree.add(grown, turns)
        self._back_up([*path, *new])

    def end(self, group: int) -> None:
        """Forget a group's tree."""
        self._roots.pop(group, None)
        self._paths.pop(group, None)

    def _back_up(self, path: list[TreeTurn]) -> None:
        search_tree.backup(path, self._rule.gamma, self._rule.backup)
