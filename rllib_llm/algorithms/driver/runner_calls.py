"""Calls that an algorithm sends to its EnvRunners."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import Task
from rllib_llm.env_runner.task_queue import GroupsWanted

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner


@dataclasses.dataclass(frozen=True)
class SampleResult:
    """Result of a sample call to an EnvRunner.

    Attributes:
        episodes: Finished episodes, in the order of the tasks.
        metrics: Metrics logged since the last call.
        num_hung_envs: Environments of the EnvRunner that hang in a call.
        group_ids: Groups of the tasks, also of those without an episode.
    """

    episodes: list[Any]
    metrics: Any
    num_hung_envs: int
    group_ids: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class SampleTasks:
    """Picklable call that samples given tasks.

    Attributes:
        tasks: The tasks.
        explore: Whether to sample; None: as the config says.
        version: Version of all weights that the EnvRunner must have; None: any.
    """

    tasks: list[Task]
    explore: bool | None = None
    version: int | None = None

    def __call__(self, runner: LLMEnvRunner) -> SampleResult | None:
        """Return the episodes; None if the EnvRunner has other weights."""
        # Ray may have restarted it between two calls, unseen by the driver.
        if self.version is not None and not _is_current(runner, self.version):
            return None
        # One call, so that an EnvRunner that dies loses its episodes and their metrics
        # together.
        episodes = runner.sample(tasks=self.tasks, explore=self.explore)
        return SampleResult(
            episodes,
            runner.get_metrics(),
            runner.num_hung_envs,
            frozenset(task.group_id for task in self.tasks),
        )


@dataclasses.dataclass(frozen=True)
class GroupsResult:
    """Result of a call that samples ahead.

    Attributes:
        groups: Episodes of complete groups, by group_id.
        left: Groups that the EnvRunner goes on with.
        metrics: Metrics logged since the last call.
        num_hung_envs: Environments of the EnvRunner that hang in a call.
        idle_s: Seconds since the call before, in which it loaded weights as well.
        busy_s: Seconds of this call.
    """

    groups: dict[int, list[Any]]
    left: frozenset[int]
    metrics: Any
    num_hung_envs: int
    idle_s: float = 0.0
    busy_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class SampleGroups:
    """Call that samples ahead: new weights, new tasks, and the groups to wait for.

    Attributes:
        tasks: Tasks to add to those that the EnvRunner is sampling.
        wanted: Groups to wait for.
        weights: Call that loads weights; None: those that it has.
        version: Version that it must have if ``weights`` is None; None: any.
    """

    tasks: list[Task]
    wanted: GroupsWanted
    weights: Callable[[LLMEnvRunner], bool] | None
    version: int | None = None

    def __call__(self, runner: LLMEnvRunner) -> GroupsResult | None:
        """Return the complete groups; None if the EnvRunner lacks other weights."""
        if self.weights is not None:
            if not self.weights(runner):
                return None
        elif self.version not in (None, runner._weights_seq_no):
            return None  # restarted since its last call
        started = time.perf_counter()
        groups = runner.sample_groups(self.tasks, self.wanted)
        return GroupsResult(
            groups,
            runner.groups_left,
            runner.get_metrics(),
            runner.num_hung_envs,
            idle_s=runner.idle_s,
            busy_s=time.perf_counter() - started,
        )


def _is_current(runner: LLMEnvRunner, version: int) -> bool:
    return runner.has_all_weights and runner._weights_seq_no == version


def sample_and_metrics(runner: LLMEnvRunner) -> tuple[list[Any], Any]:
    """Sample as RLlib's runners do; return episodes and metrics."""
    return runner.sample(), runner.get_metrics()


def exit_if_hung(runner: LLMEnvRunner, *, limit: int) -> None:
    """End the process of an EnvRunner with more hung environments than ``limit``.

    Ray restarts it. A hung thread cannot be ended in another way.
    """
    if runner.num_hung_envs > limit:
        sys.exit(1)


def drop_groups(runner: LLMEnvRunner) -> None:
    """Let an EnvRunner discard the groups that it samples ahead."""
    runner.drop_groups()


def sleep(runner: LLMEnvRunner) -> None:
    """Let a runner's engines release memory."""
    for engine in runner.engines.values():
        engine.sleep()


def split_by_group(tasks: list[Task], parts: int) -> list[list[Task]]:
    """Split tasks into ``parts`` lists without splitting groups."""
    split: list[list[Task]] = [[] for _ in range(parts)]
    # Group statistics are over whole groups, and first observations are compared within
    # them. Sorted, so that the split does not depend on the order of the tasks; by
    # environment first, so that each part has its share of a mixture's slow ones.
    groups = [
        group for _, group in sorted({(t.environment or "", t.group_id) for t in tasks})
    ]
    place = {group: i % parts for i, group in enumerate(groups)}
    for task in tasks:
        split[place[task.group_id]].append(task)
    return split
