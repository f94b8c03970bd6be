"""Calls that EnvRunners get when they sample ahead, for the table of settings."""

from __future__ import annotations

import types
from typing import Any

from setting_looks import config_of

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.driver.runner_calls import GroupsResult, SampleGroups
from rllib_llm.algorithms.driver.weight_transfer import weight_sync_of


class Runner:
    """An EnvRunner that finishes every group at once, but group 0 only if required."""

    def __init__(self) -> None:
        self.calls: list[SampleGroups] = []
        self.running: list[int] = []
        self.is_called = False

    def foreach_env_runner_async(self, call: Any, **_: Any) -> int:
        self.calls.append(call)
        self.running += dict.fromkeys(task.group_id for task in call.tasks)
        self.is_called = True
        return 1

    def fetch_ready_async_reqs(self, **_: Any) -> list[Any]:
        required = self.calls[-1].wanted.required
        done = [group for group in self.running if group or group in required]
        self.running = [group for group in self.running if group not in done]
        self.is_called = False
        return [
            (1, GroupsResult({g: [g] for g in done}, frozenset(self.running), {}, 0))
        ]

    def num_in_flight_async_reqs(self, tag: str) -> int:
        return int(self.is_called)


def _driver(algo: str, env: Any, sections: dict[str, Any]) -> tuple[Any, Runner]:
    config = config_of(algo, env, **sections)
    runner = Runner()
    given = types.SimpleNamespace(
        config=config,
        env_runner_group=runner,
        learner_group=None,
        weight_sync=weight_sync_of(config, None),  # type: ignore[arg-type]
        next_tasks=config.build_task_source().next_groups,
    )
    return LLMAlgorithm._build_sample_ahead(given), runner  # type: ignore[arg-type]


def groups_admitted(algo: str, env: Any = None, **sections: Any) -> int:
    """Return how many groups are sampled for the first batch and ahead of it."""
    driver, runner = _driver(algo, env, sections)
    if driver is None:
        return 0
    driver.take(lambda: [1])
    return len({task.group_id for call in runner.calls for task in call.tasks})


def batch_that_waits(algo: str, env: Any = None, **sections: Any) -> int:
    """Return the number of the batch that waits for a slow group."""
    driver, _ = _driver(algo, env, sections)
    return next(i for i in range(99) if 0 in driver.take(lambda: [1]).episodes)
