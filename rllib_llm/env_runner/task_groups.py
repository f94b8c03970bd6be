"""Source of tasks: seeds, groups, and a cursor that checkpoints save."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import MIXTURE_ENVIRONMENT, Task
from rllib_llm.envs.env_options import TASK_NUMBER
from rllib_llm.envs.make import has_numbered_tasks
from rllib_llm.envs.mixture_members import MIXTURE, read_members
from rllib_llm.errors import CheckpointError, ConfigError, did_you_mean
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    from rllib_llm.data.added_texts import TextSource
    from rllib_llm.envs.make import EnvSpec


@dataclasses.dataclass(frozen=True)
class EnvironmentTasks:
    """Tasks of one environment.

    Attributes:
        name: The environment's name in a mixture; None without a mixture.
        weight: Its share of the groups, relative to the other weights.
        first_number: Number of the first task for environments with ``numbered_tasks``,
            which receive it with every reset; None: others.
    """

    name: str | None = None
    weight: float = 1.0
    first_number: int | None = None


class TaskSource:
    """Creates the tasks of groups of rollouts.

    All rollouts of a group share seed, options and environment. Training tasks follow a
    cursor; evaluation tasks are the same held-out tasks every time.

    In a mixture each group gets the environment whose number of groups is furthest
    below its share, so that after any number of groups every environment is within one
    group of its share (two environments), or close to it. Each environment counts its
    own tasks: they are the same, in the same order, in a mixture and without one.

    Args:
        seed: The run's seed.
        group_size: Rollouts per group (G).
        split: ``"train"`` or ``"test"``, passed to the environment.
        options: Reset options for every task.
        first_number: As in :class:`EnvironmentTasks`, of the only environment.
        environments: The environments of a mixture, in place of ``first_number``.
    """

    def __init__(
        self,
        seed: int,
        group_size: int = 1,
        split: str = "train",
        options: dict[str, Any] | None = None,
        first_number: int | None = None,
        environments: Sequence[EnvironmentTasks] = (),
    ):
        self.seed = seed
        self.group_size = group_size
        self.split = split
        self.options = dict(options or {})
        self.first_number = first_number
        self.environments = list(environments) or [
            EnvironmentTasks(first_number=first_number)
        ]
        self.cursor = 0
        self.drawn = [0] * len(self.environments)  # groups of each environment

    def next_groups(self, num_groups: int) -> list[Task]:
        """Return the tasks of the next ``num_groups`` groups, group by group."""
        tasks: list[Task] = []
        for _ in range(num_groups):
            index = self._next_environment()
            tasks += [
                self._task(self.cursor, rollout, index, self.drawn[index])
                for rollout in range(self.group_size)
            ]
            self.cursor += 1
            self.drawn[index] += 1
        return tasks

    def fixed(self, num_episodes: int, first: int = 0, stride: int = 1) -> list[Task]:
        """Return the same single-rollout tasks ``first, first + stride, ...``.

        In a mixture the environments take turns, whatever their weights.
        """
        numbers = [first + i * stride for i in range(num_episodes)]
        count = len(self.environments)
        return [self._task(n, 0, n % count, n // count) for n in numbers]

    def of_environment(self, name: str) -> TaskSource:
        """Return a source of the tasks of one environment of the mixture.

        Raises:
            ConfigError: If it has no environment of that name.
        """
        chosen = [each for each in self.environments if each.name == name]
        if not chosen:
            names = [each.name for each in self.environments if each.name is not None]
            raise ConfigError(
                f"The run samples no environment {name!r}. {did_you_mean(name, names)}"
            )
        return TaskSource(
            self.seed, self.group_size, self.split, self.options, environments=chosen
        )

    def _next_environment(self) -> int:
        """Return the index of the environment that is furthest below its share."""
        total = sum(each.weight for each in self.environments)
        missing = [
            each.weight / total * (self.cursor + 1) - drawn
            for each, drawn in zip(self.environments, self.drawn, strict=True)
        ]
        return max(range(len(missing)), key=missing.__getitem__)

    def _task(self, group: int, rollout: int, index: int, number: int) -> Task:
        environment = self.environments[index]
        options = {**self.options, "split": self.split}
        if environment.name is not None:
            options[MIXTURE_ENVIRONMENT] = environment.name
        if environment.first_number is not None:
            options[TASK_NUMBER] = environment.first_number + number
        return Task(
            group_id=group,
            rollout=rollout,
            # Without the rollout's number: a group plays one task.
            seed=stable_seed(self.seed, self.split, number),
            options=options,
        )

    @property
    def _names(self) -> list[str | None]:
        return [each.name for each in self.environments]

    def get_state(self) -> dict[str, Any]:
        """Return the cursors, one for each environment of a mixture."""
        if self._names == [None]:
            return {"cursor": self.cursor}
        drawn = dict(zip(self._names, self.drawn, strict=True))
        return {"cursor": self.cursor, "drawn": drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the cursors to those of ``state``.

        Raises:
            CheckpointError: If the state belongs to other environments.
        """
        cursor = state["cursor"]
        drawn = state.get("drawn", {None: cursor})
        if set(drawn) != set(self._names):
            raise CheckpointError(
                f"The checkpoint has the tasks of {_listed(drawn)}, but the run "
                f"samples {_listed(self._names)}. Continue with the same environments, "
                "or load the weights alone (stages in docs/recipes.md)."
            )
        self.cursor, self.drawn = cursor, [drawn[name] for name in self._names]


def _listed(names: Any) -> str:
    return ", ".join("one environment" if n is None else repr(n) for n in names)


def with_sources(
    tasks: Sequence[Task], sources: Mapping[str | None, TextSource]
) -> list[Task]:
    """Return the tasks with the texts of their environments, by its name."""
    return [task.with_texts(sources.get(task.environment)) for task in tasks]


def held_out_source(env: EnvSpec, env_config: Mapping[str, Any]) -> TaskSource:
    """Return the source of an environment's held-out tasks, those of evaluation."""
    return TaskSource(
        seed=0, split="test", environments=environment_tasks(env, env_config)
    )


def environment_tasks(
    env: EnvSpec, env_config: Mapping[str, Any], first: int = 0
) -> list[EnvironmentTasks]:
    """Return the environments that tasks are drawn for: one, or those of a mixture.

    Args:
        env: The environment.
        env_config: Its options.
        first: Number of the first task, where tasks are numbered.
    """

    def first_of(spec: EnvSpec, options: Mapping[str, Any]) -> int | None:
        return first if has_numbered_tasks(spec, options) else None

    if env != MIXTURE:
        return [EnvironmentTasks(first_number=first_of(env, env_config))]
    return [
        EnvironmentTasks(m.name, m.weight, first_of(m.env, m.env_config))
        for m in read_members(env_config)
    ]
