"""What an algorithm asks of its EnvRunners."""

from __future__ import annotations

from typing import Any

from rllib_llm.types import Task


class SampleTasks:
    """A picklable call: sample these tasks, return episodes and metrics."""

    def __init__(self, tasks: list[Task], explore: bool | None = None):
        self.tasks, self.explore = tasks, explore

    def __call__(self, runner: Any) -> tuple[list[Any], Any]:
        episodes = runner.sample(tasks=self.tasks, explore=self.explore)
        return episodes, runner.get_metrics()


def sample_and_metrics(runner: Any) -> tuple[list[Any], Any]:
    """Sample as RLlib's own runners do; return episodes and metrics."""
    return runner.sample(), runner.get_metrics()


def sleep(runner: Any) -> None:
    """Let a runner's engines release memory."""
    for engine in runner.engines.values():
        engine.sleep()


def wake_up(runner: Any) -> None:
    """Let them take it again."""
    for engine in runner.engines.values():
        engine.wake_up()


def deal(tasks: list[Task], parts: int) -> list[list[Task]]:
    """Split tasks into ``parts`` lists without splitting groups."""
    dealt: list[list[Task]] = [[] for _ in range(parts)]
    groups = sorted({t.group_id for t in tasks})
    place = {group: i % parts for i, group in enumerate(groups)}
    for task in tasks:
        dealt[place[task.group_id]].append(task)
    return dealt
