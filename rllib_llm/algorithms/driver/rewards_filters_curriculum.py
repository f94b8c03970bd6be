"""Components on the driver: curriculum, texts, rewards, filters of whole groups."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, ComponentSpecs, bind
from rllib_llm.data.added_texts import TextSource
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import TurnTable, example_table
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import FilterResult, Filters
from rllib_llm.prompt_texts.asked import PromptText
from rllib_llm.rewards.combine import Rewards
from rllib_llm.rewards.gain import Gain

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


class EnvironmentComponents:
    """The curriculum, rewards and filters of one environment.

    Args:
        specs: The components as configured.
        turns_may_be_masked: Whether filters may mask single turns.
    """

    def __init__(self, specs: ComponentSpecs, *, turns_may_be_masked: bool) -> None:
        self.rewards = Rewards(specs.rewards, specs.reward_transforms)
        self.filters = Filters(specs.filters, turns_may_be_masked=turns_may_be_masked)
        self.curriculum: BoundComponent | None = None
        if specs.curriculum is not None:
            self.curriculum = bind("curriculum", specs.curriculum)
        self.prompt_text: BoundComponent | None = None
        if specs.prompt_text is not None:
            self.prompt_text = bind("prompt_text", specs.prompt_text)

    @property
    def observe(self) -> Callable[[TurnTable], None] | None:
        """The curriculum's function that reads results; None without one."""
        return getattr(getattr(self.curriculum, "call", None), "observe", None)

    @property
    def gains(self) -> list[Gain]:
        """The rewards that compare with the task under other options."""
        return [p.call for p in self.rewards.parts if isinstance(p.call, Gain)]

    def try_out(self, make_env: Callable[[], Any]) -> None:
        """Run all components on example turns, to detect bad settings early.

        Args:
            make_env: Builds the environment.

        Raises:
            ConfigError: If a setting is wrong.
        """
        # Copies, because example turns must not change the components' state.
        copy.deepcopy(self.rewards).try_out()
        copy.deepcopy(self.filters).try_out()
        if self.curriculum is not None:
            trial = copy.deepcopy(self.curriculum)
            check_task(trial, Task(group_id=0, rollout=0, seed=0))
            _try_options(trial, make_env)
        if self.prompt_text is not None:
            try_texts(copy.deepcopy(self.prompt_text), make_env)
        for gain in self.gains:
            _try_each("reward 'gain'", [gain.baseline_options], make_env)

    @property
    def bound(self) -> list[BoundComponent]:
        """All components, in the order of their states in checkpoints."""
        of_tasks = (self.curriculum, self.prompt_text)
        rewards = (*self.rewards.parts, *self.rewards.transforms)
        present = [component for component in of_tasks if component is not None]
        return [*present, *rewards, *self.filters.bound]


class DriverComponents:
    """The curriculum, rewards and filters of a configuration.

    In a mixture each environment has its own, with a state of their own: rewards of
    different scales are never compared by a filter or a curriculum.

    Args:
        config: The algorithm's configuration.

    Attributes:
        by_environment: Components by the environment's name; the only key is None
            without a mixture.
    """

    def __init__(self, config: LLMConfig) -> None:
        self.config = config
        self.by_environment: dict[str | None, EnvironmentComponents] = {}
        for name, specs in config.component_specs().items():
            with _named(name):
                self.by_environment[name] = EnvironmentComponents(
                    specs,
                    # A masked turn takes its reward with it, which the critic's
                    # returns need.
                    turns_may_be_masked=not config.use_critic,
                )

    @property
    def only(self) -> EnvironmentComponents:
        """The components of a run without a mixture."""
        return self.by_environment[None]

    @property
    def has_gains(self) -> bool:
        """True if a reward compares with tasks under other options."""
        return any(each.gains for each in self.by_environment.values())

    def try_out(self) -> None:
        """Run all components on example turns, to detect bad settings early.

        Raises:
            ConfigError: If a setting is wrong.
        """
        for name, components in self.by_environment.items():
            with _named(name):
                components.try_out(functools.partial(self.make_env, name))

    def make_env(self, name: str | None) -> Any:
        """Return a new environment: one of a mixture by name, or the only one."""
        if name is None:
            return self.config.make_text_env()
        envs = self.config.make_each_env()
        for other in envs.keys() - {name}:
            envs[other].close()
        return envs[name]

    def assign(self, tasks: Sequence[Task], iteration: int) -> list[Task]:
        """Return the tasks as changed by the curricula, equally within a group."""
        # Reversed, so that the first task of each group is the one that remains.
        first = {t.group_id: t for t in reversed(tasks)}
        changed: dict[int, Task] = {}
        for group, task in first.items():
            components = self.by_environment[task.environment]
            for bound in (components.curriculum, components.prompt_text):
                if bound is not None:
                    task = check_task(bound, task, iteration)
            changed[group] = task
        return [
            dataclasses.replace(changed[t.group_id], rollout=t.rollout) for t in tasks
        ]

    def assign_rewards(
        self, episodes: SampledEpisodes, iteration: int
    ) -> dict[tuple[str, ...], float]:
        """Assign rewards, and report the results of its tasks to each curriculum.

        Returns:
            Mean reward of each part over trajectories, by name, in a mixture after the
            environment's; empty if rewards are the environment's alone.
        """
        means: dict[tuple[str, ...], float] = {}
        for environment, components in self.by_environment.items():
            indices = self._indices(episodes, environment)
            if components.rewards.changes_anything and indices:
                parts = _assign(components.rewards, episodes, indices, iteration)
                key = () if environment is None else (environment,)
                for name, rewards in parts.items():
                    means[*key, name] = float(rewards.sum()) / len(indices)
            if components.observe is not None:
                # After the rewards: it follows the returns that are trained.
                components.observe(episodes.table_of(indices))
        return means

    def prompt_text_of(self, environment: str | None) -> PromptText:
        """Return the component that adds texts to an environment's episodes."""
        bound = self.by_environment[environment].prompt_text
        assert bound is not None
        text: PromptText = bound.call
        return text

    def tables_of_texts(
        self, episodes: SampledEpisodes
    ) -> list[tuple[str | None, TurnTable]]:
        """Return the trajectories of each environment with texts, and its name."""
        return [
            (environment, episodes.table_of(self._indices(episodes, environment)))
            for environment, components in self.by_environment.items()
            if components.prompt_text is not None
        ]

    def shared_texts(self) -> dict[str | None, TextSource]:
        """Return the texts of evaluation episodes, by the environment's name."""
        sources = {
            environment: self.prompt_text_of(environment).shared()
            for environment, components in self.by_environment.items()
            if components.prompt_text is not None
        }
        return {name: source for name, source in sources.items() if source is not None}

    def _indices(
        self, episodes: SampledEpisodes, environment: str | None
    ) -> Sequence[int]:
        """Return the indices of an environment's trajectories."""
        components = self.by_environment[environment]
        needed = (
            components.rewards.changes_anything
            or components.filters.bound
            or components.prompt_text is not None
            or components.observe is not None
        )
        if not needed:
            return ()  # trajectories are built at the first use
        # Stock EnvRunners have no tasks, and no mixtures.
        if environment is None:
            return range(len(episodes.trajectories))
        return [
            index
            for index, trajectory in enumerate(episodes.trajectories)
            if trajectory.task.environment == environment
        ]

    def select(
        self, episodes: SampledEpisodes
    ) -> tuple[SampledEpisodes, dict[tuple[str, ...], float]]:
        """Drop or mask the trajectories that the filters do not keep.

        Returns:
            The remaining episodes, and the share that each filter removed, by name, in
            a mixture after the environment's.
        """
        if not any(each.filters.bound for each in self.by_environment.values()):
            return episodes, {}
        results = [FilterResult() for _ in episodes.trajectories]
        shares: dict[tuple[str, ...], float] = {}
        for environment, components in self.by_environment.items():
            indices = self._indices(episodes, environment)
            if not components.filters.bound or not indices:
                continue
            key = () if environment is None else (environment,)
            filtered, removed = components.filters(episodes.table_of(indices))
            shares |= {(*key, name): share for name, share in removed.items()}
            for index, result in zip(indices, filtered, strict=True):
                results[index] = result
        return _without_removed(episodes, results), shares

    def filter_metrics(self) -> dict[tuple[str, ...], float]:
        """Return what filters measured, by name; in a mixture after the environment."""
        return {
            (*(() if environment is None else (environment,)), *key): value
            for environment, components in self.by_environment.items()
            for key, value in components.filters.metrics().items()
        }

    def get_state(self) -> Any:
        """Return the components' state: a list, in a mixture by environment."""
        states = {
            name: [bound.get_state() for bound in components.bound]
            for name, components in self.by_environment.items()
        }
        return states.get(None, states)

    def set_state(self, state: Any) -> None:
        """Restore :meth:`get_state`'s result."""
        states = {None: state} if None in self.by_environment else state
        for name, components in self.by_environment.items():
            # By position, since a component may be listed twice. Strict: a resumed run
            # has the same recipe.
            for bound, component_state in zip(
                components.bound, states[name], strict=True
            ):
                bound.set_state(component_state)


@contextlib.contextmanager
def _named(environment: str | None) -> Iterator[None]:
    """Add an environment's name to a ConfigError, in a mixture."""
    try:
        yield
    except ConfigError as error:
        if environment is None:
            raise
        raise ConfigError(f"mixture, {environment}: {error}") from error


def _assign(
    rewards: Rewards,
    episodes: SampledEpisodes,
    indices: Sequence[int],
    iteration: int,
) -> dict[str, np.ndarray]:
    """Write new rewards into these trajectories; return the parts per turn. [M] each"""
    trajectories = episodes.trajectories
    # Copies: components replace the rewards, and the difference is written into the
    # reward logs of multi-agent episodes.
    before = [list(trajectory.rewards) for trajectory in trajectories]
    parts = rewards([trajectories[i] for i in indices], iteration)
    episodes.write_rewards(before)
    table = episodes.table_of(indices)
    for name, per_turn in parts.items():
        for index, of_trajectory in zip(indices, table.split(per_turn), strict=True):
            # For transcripts.
            episodes.data[index].reward_parts[name] = of_trajectory.tolist()
    return parts


def _without_removed(
    episodes: SampledEpisodes, results: Sequence[FilterResult]
) -> SampledEpisodes:
    """Return the episodes without dropped ones; mask trajectories and turns."""
    # A dropped trajectory may stay in the batch, because the episode goes only if no
    # agent's trajectory is kept; it is masked then.
    episodes.mask([i for i, r in enumerate(results) if r.is_dropped or r.is_masked])
    kept: set[int] = set()
    for data, trajectory, result in zip(
        episodes.data, episodes.trajectories, results, strict=True
    ):
        data.masked_turns = result.masked_turns
        if not result.is_dropped:
            kept.add(trajectory.episode)
    return episodes.select(kept)


def _try_options(curriculum: BoundComponent, make_env: Callable[[], Any]) -> None:
    """Start an episode with each of the options that the curriculum may set."""
    if hasattr(curriculum.call, "all_options"):
        name = f"curriculum {curriculum.component.name!r}"
        _try_each(name, curriculum.call.all_options(), make_env)


def _try_each(
    who: str, several: Sequence[Mapping[str, Any]], make_env: Callable[[], Any]
) -> None:
    env = make_env()
    try:
        for options in several:
            env.reset(seed=0, options={**options, "split": "train"})
    except ConfigError as error:
        raise ConfigError(f"{who}: {error}") from error
    finally:
        env.close()


def check_task(bound: BoundComponent, task: Task, iteration: int = 0) -> Task:
    """Return the task as changed by a curriculum or by texts, checked."""
    changed = bound.call.assign(task, iteration)
    if not isinstance(changed, Task) or changed.group_id != task.group_id:
        raise ConfigError(
            f"{bound.component.kind} {bound.component.name!r} returned {changed!r} for "
            "a task. It must return the Task with other options or max_turns "
            "(dataclasses.replace)."
        )
    return changed


def try_texts(bound: BoundComponent, make_env: Callable[[], Any]) -> None:
    """Let a component of texts read example turns, and start with its options."""
    options = check_task(bound, Task(group_id=0, rollout=0, seed=0)).options
    if options:
        _try_each(f"prompt_text {bound.component.name!r}", [options], make_env)
    table = example_table()
    asked = bound.call.asked(table)
    bound.call.observe(table, [None] * len(asked))
