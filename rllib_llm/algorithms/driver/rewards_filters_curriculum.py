"""Pieces that run on the driver over whole groups: curriculum, rewards, filters."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, bind
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, agent_episodes
from rllib_llm.data.to_turn_table import trajectories
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import StopPolicy, Task
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters
from rllib_llm.rewards.combine import Rewards


class DriverComponents:
    """What a configuration's ``rollouts`` say about tasks, rewards and filters.

    Args:
        config: The algorithm's configuration.
    """

    def __init__(self, config: Any) -> None:
        self.rewards = Rewards(config.rewards, config.reward_transforms)
        self.filters = Filters(
            config.filters, turns_may_be_masked=not config.use_critic
        )
        self.config = config
        self.curriculum: BoundComponent | None = None
        if config.curriculum is not None:
            self.curriculum = bind("curriculum", config.curriculum)

    def try_out(self) -> None:
        """Run all of it on a few made-up turns.

        Raises:
            ConfigError: If a setting is wrong.
        """
        copy.deepcopy(self.rewards).try_out()
        copy.deepcopy(self.filters).try_out()
        if self.curriculum is not None:
            trial = copy.deepcopy(self.curriculum)
            _check_task(trial, Task(group_id=0, rollout=0, seed=0))
            self._try_options(trial)

    def _try_options(self, curriculum: BoundComponent) -> None:
        """Begin an episode with each of the options that may be asked for."""
        if not hasattr(curriculum.call, "all_options"):
            return
        env = self.config.make_text_env()
        try:
            for options in curriculum.call.all_options():
                env.reset(seed=0, options={**options, "split": "train"})
        except ConfigError as error:
            name = curriculum.component.name
            raise ConfigError(f"curriculum {name!r}: {error}") from error
        finally:
            env.close()

    def assign(self, tasks: Sequence[Task], iteration: int) -> list[Task]:
        """Let the curriculum change the tasks, the same way within a group."""
        if self.curriculum is None:
            return list(tasks)
        first = {t.group_id: t for t in reversed(tasks)}
        changed = {
            g: _check_task(self.curriculum, t, iteration) for g, t in first.items()
        }
        return [
            dataclasses.replace(changed[t.group_id], rollout=t.rollout) for t in tasks
        ]

    def pay(self, episodes: Sequence[Any], iteration: int) -> dict[str, float]:
        """Give rewards, and tell the curriculum what came of its tasks.

        Returns:
            What each part paid, a mean over trajectories, by name; nothing where the
            environment alone pays.
        """
        observe = getattr(getattr(self.curriculum, "call", None), "observe", None)
        if observe is None and not self.rewards.changes_anything:
            return {}
        found = trajectories(episodes)
        paid: dict[str, float] = {}
        if self.rewards.changes_anything and found:
            before = [list(t.rewards) for _, t in found]
            parts = self.rewards([t for _, t in found], iteration)
            paid = {name: float(p.sum()) / len(found) for name, p in parts.items()}
            _keep_parts(found, parts)
            _write_rewards(episodes, found, before)
        if observe is not None:
            observe(TurnTable([t for _, t in found]))
        return paid

    def select(self, episodes: Sequence[Any]) -> tuple[list[Any], dict[str, float]]:
        """Drop or mask what the filters do not keep.

        Returns:
            The episodes that are left, and the share that each filter took, by name.
        """
        if not self.filters.bound:
            return list(episodes), {}
        found = trajectories(episodes)
        verdicts, shares = self.filters([t for _, t in found])
        left: set[int] = set()
        for (data, trajectory), verdict in zip(found, verdicts, strict=True):
            if verdict.is_dropped or verdict.is_masked:
                data.stop_policy = StopPolicy.MASK
            data.masked_turns = verdict.masked_turns
            if not verdict.is_dropped:
                left.add(trajectory.episode)
        return [e for i, e in enumerate(episodes) if i in left], shares

    @property
    def _bound(self) -> list[BoundComponent]:
        curriculum = [] if self.curriculum is None else [self.curriculum]
        rewards = (*self.rewards.parts, *self.rewards.transforms)
        return [*curriculum, *rewards, *self.filters.bound]

    def get_state(self) -> list[Any]:
        """Return what the pieces remember."""
        return [bound.get_state() for bound in self._bound]

    def set_state(self, state: Sequence[Any]) -> None:
        """Bring back :meth:`get_state`'s answer."""
        for bound, remembered in zip(self._bound, state, strict=True):
            bound.set_state(remembered)


def _check_task(curriculum: BoundComponent, task: Task, iteration: int = 0) -> Task:
    """Return what the curriculum makes of a task."""
    changed = curriculum.call.assign(task, iteration)
    if not isinstance(changed, Task) or changed.group_id != task.group_id:
        raise ConfigError(
            f"curriculum {curriculum.component.name!r} made {changed!r} of a "
            "task. It must "
            "return the Task with other options or max_turns (dataclasses.replace)."
        )
    return changed


def _keep_parts(
    found: Sequence[tuple[EpisodeData, Trajectory]], parts: dict[str, np.ndarray]
) -> None:
    """Write what each piece paid beside the episodes, for transcripts."""
    ends = np.cumsum([len(trajectory) for _, trajectory in found])[:-1]
    for name, paid in parts.items():
        for (data, _), own in zip(found, np.split(paid, ends), strict=True):
            data.reward_parts[name] = own.tolist()


def _write_rewards(
    episodes: Sequence[Any],
    found: Sequence[tuple[EpisodeData, Trajectory]],
    before: Sequence[list[float]],
) -> None:
    """Write new rewards into RLlib's record, and what changed into the ledger."""
    parts = [part for episode in episodes for part in agent_episodes(episode)]
    for part, (_, trajectory), old in zip(parts, found, before, strict=True):
        part.set_rewards(new_data=list(trajectory.rewards))
        reward_log = episodes[trajectory.episode].custom_data.get(columns.REWARD_LOG)
        if reward_log is None:
            continue
        change = np.subtract(trajectory.rewards, old)
        reward_log += [
            (step + 1, trajectory.agent_id, float(more))
            for step, more in zip(trajectory.steps, change, strict=True)
            if more
        ]
