"""Components on the driver that process whole groups: curriculum, rewards, filters."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, bind
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters
from rllib_llm.rewards.combine import Rewards

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


class DriverComponents:
    """The curriculum, rewards and filters of a configuration.

    Args:
        config: The algorithm's configuration.
    """

    def __init__(self, config: LLMConfig) -> None:
        self.rewards = Rewards(config.rewards, config.reward_transforms)
        self.filters = Filters(
            # A masked turn takes its reward with it, which the critic's returns need.
            config.filters,
            turns_may_be_masked=not config.use_critic,
        )
        self.config = config
        self.curriculum: BoundComponent | None = None
        if config.curriculum is not None:
            self.curriculum = bind("curriculum", config.curriculum)

    def try_out(self) -> None:
        """Run all components on example turns, to detect bad settings early.

        Raises:
            ConfigError: If a setting is wrong.
        """
        # Copies, because example turns must not change the components' state.
        copy.deepcopy(self.rewards).try_out()
        copy.deepcopy(self.filters).try_out()
        if self.curriculum is not None:
            trial = copy.deepcopy(self.curriculum)
            _check_task(trial, Task(group_id=0, rollout=0, seed=0))
            self._try_options(trial)

    def _try_options(self, curriculum: BoundComponent) -> None:
        """Start an episode with each of the options that the curriculum may set."""
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
        """Return the tasks as changed by the curriculum, equally within a group."""
        if self.curriculum is None:
            return list(tasks)
        # Reversed, so that the first task of each group is the one that remains.
        first = {t.group_id: t for t in reversed(tasks)}
        changed = {
            g: _check_task(self.curriculum, t, iteration) for g, t in first.items()
        }
        return [
            dataclasses.replace(changed[t.group_id], rollout=t.rollout) for t in tasks
        ]

    def assign_rewards(
        self, episodes: SampledEpisodes, iteration: int
    ) -> dict[str, float]:
        """Assign rewards, and report the results of its tasks to the curriculum.

        Returns:
            Mean reward of each part over trajectories, by name; empty if rewards are
            the environment's alone.
        """
        observe = getattr(getattr(self.curriculum, "call", None), "observe", None)
        if observe is None and not self.rewards.changes_anything:
            return {}
        trajectories = episodes.trajectories
        means: dict[str, float] = {}
        if self.rewards.changes_anything and trajectories:
            # Copies: components replace the rewards, and the difference is written into
            # the reward logs of multi-agent episodes.
            before = [list(trajectory.rewards) for trajectory in trajectories]
            parts = self.rewards(trajectories, iteration)
            means = {
                name: float(p.sum()) / len(trajectories) for name, p in parts.items()
            }
            episodes.write_rewards(before)
            _keep_parts(episodes, parts)
        if observe is not None:
            # After the rewards: the curriculum follows the returns that are trained.
            observe(episodes.table())
        return means

    def select(
        self, episodes: SampledEpisodes
    ) -> tuple[SampledEpisodes, dict[str, float]]:
        """Drop or mask the trajectories that the filters do not keep.

        Returns:
            The remaining episodes, and the share that each filter removed, by name.
        """
        if not self.filters.bound:
            return episodes, {}
        results, shares = self.filters(episodes.table())
        # A dropped trajectory may stay in the batch, because the episode goes only if
        # no agent's trajectory is kept; it is masked then.
        episodes.mask([i for i, r in enumerate(results) if r.is_dropped or r.is_masked])
        kept: set[int] = set()
        for data, trajectory, result in zip(
            episodes.data, episodes.trajectories, results, strict=True
        ):
            data.masked_turns = result.masked_turns
            if not result.is_dropped:
                kept.add(trajectory.episode)
        return episodes.select(kept), shares

    @property
    def _bound(self) -> list[BoundComponent]:
        # This order is that of the states in checkpoints.
        curriculum = [] if self.curriculum is None else [self.curriculum]
        rewards = (*self.rewards.parts, *self.rewards.transforms)
        return [*curriculum, *rewards, *self.filters.bound]

    def get_state(self) -> list[Any]:
        """Return the components' state."""
        return [bound.get_state() for bound in self._bound]

    def set_state(self, state: Sequence[Any]) -> None:
        """Restore :meth:`get_state`'s result."""
        # By position, since a component may be listed twice. Strict: a resumed run has
        # the same recipe.
        for bound, component_state in zip(self._bound, state, strict=True):
            bound.set_state(component_state)


def _check_task(curriculum: BoundComponent, task: Task, iteration: int = 0) -> Task:
    """Return the task as changed by the curriculum, checked."""
    changed = curriculum.call.assign(task, iteration)
    if not isinstance(changed, Task) or changed.group_id != task.group_id:
        raise ConfigError(
            f"curriculum {curriculum.component.name!r} returned {changed!r} for a "
            "task. It must return the Task with other options or max_turns "
            "(dataclasses.replace)."
        )
    return changed


def _keep_parts(episodes: SampledEpisodes, parts: dict[str, np.ndarray]) -> None:
    """Store each component's rewards with the episodes, for transcripts."""
    table = episodes.table()
    for name, rewards in parts.items():
        for data, of_trajectory in zip(
            episodes.data, table.split(rewards), strict=True
        ):
            data.reward_parts[name] = of_trajectory.tolist()
