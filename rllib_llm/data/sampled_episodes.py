"""Sampled episodes of whole groups, with the trajectories of their agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID

from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, agent_episodes, episode_data
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import StopPolicy, Turn

# An agent's episode, the package's record of it, and its trajectory.
_Entry = tuple[Any, EpisodeData, Trajectory]


class SampledEpisodes:
    """RLlib's episodes as a sequence, and their agents' trajectories.

    Learners read episodes, components on the driver read trajectories. Trajectories are
    built at the first use and shared by all later stages of the iteration, so whatever
    changes one must change the other: :meth:`write_rewards` does so for rewards.

    Args:
        episodes: Finished episodes of whole groups.
    """

    def __init__(self, episodes: Iterable[Any] = ()):
        self._episodes = list(episodes)
        self._entries: list[_Entry] | None = None
        self._table: TurnTable | None = None

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._episodes)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over RLlib's episodes."""
        return iter(self._episodes)

    def __getitem__(self, index: int) -> Any:
        """Return one of RLlib's episodes."""
        return self._episodes[index]

    def __add__(self, other: SampledEpisodes) -> SampledEpisodes:
        """Return the episodes of both, with the trajectories that exist already."""
        first = len(self)
        both = SampledEpisodes([*self._episodes, *other])
        both._entries = [*self._built, *_renumbered(other._built, lambda n: n + first)]
        return both

    @property
    def _built(self) -> list[_Entry]:
        if self._entries is None:
            self._entries = [
                (part, episode_data(part), _trajectory(part, number))
                for number, episode in enumerate(self._episodes)
                for part in agent_episodes(episode)
            ]
        return self._entries

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectory of every agent that acted. [N]"""
        return [trajectory for _, _, trajectory in self._built]

    @property
    def data(self) -> list[EpisodeData]:
        """The package's record of each trajectory's episode. [N]"""
        return [data for _, data, _ in self._built]

    def table(
        self,
        replay: Callable[[Sequence[Trajectory]], dict[str, float]] | None = None,
    ) -> TurnTable:
        """Return the trajectories as columns, built again only after a change.

        Args:
            replay: See :class:`~rllib_llm.data.turn_table.TurnTable`.
        """
        if self._table is None:
            self._table = TurnTable(self.trajectories)
        self._table.replay = replay
        return self._table

    def table_of(self, indices: Sequence[int]) -> TurnTable:
        """Return these trajectories as columns."""
        if len(indices) == len(self.trajectories):
            return self.table()
        return TurnTable([self.trajectories[index] for index in indices])

    def select(self, numbers: Collection[int]) -> SampledEpisodes:
        """Return the episodes with these numbers, in order, and their trajectories."""
        kept = sorted(numbers)
        if len(kept) == len(self):
            return self
        selected = SampledEpisodes(self._episodes[number] for number in kept)
        new = {number: index for index, number in enumerate(kept)}
        entries = [entry for entry in self._built if entry[2].episode in new]
        selected._entries = _renumbered(entries, new.__getitem__)
        return selected

    def mask(self, indices: Collection[int]) -> None:
        """Exclude these trajectories from training; statistics still count them."""
        for index in indices:
            _, data, trajectory = self._built[index]
            data.stop_policy, trajectory.is_trained = StopPolicy.MASK, False
        if indices:
            self._table = None

    def of_policy(self, module_id: str) -> SampledEpisodes:
        """Return all episodes, but only the trajectories of one policy."""
        restricted = SampledEpisodes(self._episodes)
        restricted._entries = [e for e in self._built if e[2].module_id == module_id]
        return restricted

    def of_agent(self, agent_id: str) -> SampledEpisodes:
        """Return the parts of one agent as episodes, with their trajectories."""
        entries = [entry for entry in self._built if entry[2].agent_id == agent_id]
        parts = SampledEpisodes(part for part, _, _ in entries)
        number = {t.episode: index for index, (_, _, t) in enumerate(entries)}
        parts._entries = _renumbered(entries, number.__getitem__)
        return parts

    def write_rewards(self, before: Sequence[Sequence[float]]) -> None:
        """Write the trajectories' rewards into RLlib's episodes and their reward logs.

        Args:
            before: Rewards of each trajectory before they were changed. N lists of [H]
        """
        for (part, _, trajectory), old in zip(self._built, before, strict=True):
            part.set_rewards(new_data=list(trajectory.rewards))
            # RLlib may store another precision: components and Learners see the same.
            trajectory.rewards = [float(reward) for reward in part.get_rewards()]
            episode = self._episodes[trajectory.episode]
            reward_log = episode.custom_data.get(columns.REWARD_LOG)
            if reward_log is None:
                continue
            # The log is read by environment step: a turn's reward follows it.
            reward_log += [
                (step + 1, trajectory.agent_id, new - previous)
                for step, new, previous in zip(
                    trajectory.steps, trajectory.rewards, old, strict=True
                )
                if new != previous
            ]
        self._table = None


def _renumbered(
    entries: Iterable[_Entry], number: Callable[[int], int]
) -> list[_Entry]:
    return [
        (part, data, dataclasses.replace(t, episode=number(t.episode)))
        for part, data, t in entries
    ]


def _mean_logp(turn: Turn) -> float:
    logps = turn.action_logps
    return float(logps.mean()) if len(logps) else 0.0


def _trajectory(part: Any, number: int) -> Trajectory:
    data = episode_data(part)
    assert data.task is not None  # the EnvRunner sets it before the first turn
    turns = part.get_extra_model_outputs(columns.TURN)
    observations = [str(o) for o in part.get_observations()]
    return Trajectory(
        task=data.task,
        episode=number,
        agent=data.agent_index,
        agent_id=part.agent_id or DEFAULT_AGENT_ID,
        module_id=part.module_id or DEFAULT_MODULE_ID,
        observations=observations[: len(turns)],
        completions=[str(a) for a in part.get_actions()],
        rewards=[float(r) for r in part.get_rewards()],
        steps=[turn.env_t for turn in turns],
        num_tokens=[len(turn.action_ids) for turn in turns],
        logps=[_mean_logp(turn) for turn in turns],
        invalid=[turn.invalid for turn in turns],
        infos=[dict(info) for info in part.get_infos()[1 : len(turns) + 1]],
        metrics=data.metrics,
        success=data.success,
        stop_reason=data.stop_reason,
        is_trained=data.stop_policy is not StopPolicy.MASK,
        greedy_return=data.greedy_return,
        messages=data.messages,
        path=data.path,
        images=[tuple(ref.digest for ref in turn.images) for turn in turns],
        added_texts=tuple(added.text for added in data.added_texts),
        added_numbers=tuple(added.number for added in data.added_texts),
    )
