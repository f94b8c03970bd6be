"""Sampling on EnvRunners that fail, for the table of settings."""

from __future__ import annotations

import types
from typing import Any

import pytest
from setting_looks import config_of

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.driver import sampling
from rllib_llm.algorithms.driver.runner_calls import SampleResult
from rllib_llm.algorithms.driver.sampling import SamplingAlgorithm
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import EnvRunnerError


class Group:
    """Two remote EnvRunners that record the time limits of their calls.

    Args:
        healthy: Ids of those that are healthy.
        num_hung_envs: Hanging environments of each.
    """

    env_runner_cls = LLMEnvRunner
    local_env_runner = None

    def __init__(self, healthy: list[int], num_hung_envs: int = 0) -> None:
        self.healthy, self.num_hung_envs = healthy, num_hung_envs
        self.limits: list[float] = []

    def healthy_env_runner_ids(self) -> list[int]:
        return self.healthy

    def num_remote_workers(self) -> int:
        return 2

    def foreach_env_runner(
        self,
        calls: list[Any],
        *,
        local_env_runner: bool,
        remote_worker_ids: list[int],
        timeout_seconds: float,
    ) -> list[Any]:
        self.limits.append(timeout_seconds)
        return [(each.runner, self._answer(each.call)) for each in calls]

    def _answer(self, call: Any) -> SampleResult:
        tasks = getattr(call, "tasks", ())
        groups = frozenset(task.group_id for task in tasks)
        return SampleResult([], {}, self.num_hung_envs, groups)


class Sampler(SamplingAlgorithm):
    """As much of an Algorithm as sampling on EnvRunners needs."""

    iteration = 0
    env_runner = None
    eval_env_runner_group = None

    def __init__(self, config: Any, group: Any) -> None:
        self.config, self.env_runner_group = config, group
        self._task_source = config.build_task_source()
        self._driver_components = types.SimpleNamespace(
            assign=lambda tasks, iteration: tasks,
            get_state=lambda: None,
            set_state=lambda state: None,
        )
        self.metrics = types.SimpleNamespace(
            log_value=lambda *args, **kwargs: None,
            aggregate=lambda *args, **kwargs: None,
        )
        self.restarted: list[int] = []

    def restore_env_runners(self, group: Any) -> list[int]:
        return []

    def _restart_hung(self, most: int, *, is_local: bool) -> None:
        self.restarted.append(most)


def sampler(
    algo: str, sections: dict[str, Any], group: Any, **settings: Any
) -> Sampler:
    """Return a Sampler; ``settings`` are more of ``fault_tolerance``."""
    sections = {**sections}
    given = sections.pop("fault_tolerance", {})
    config = config_of(algo, **sections).copy(copy_frozen=False)
    config.fault_tolerance(**settings, **given)
    return Sampler(config, group)


def without_healthy_runners(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the EnvRunners that sample if none is healthy."""
    run = sampler(algo, sections, Group([]), restart_failed_env_runners=False)
    try:
        return run._healthy_runners()
    except EnvRunnerError:
        return "stops"


def after_hung_envs(algo: str, env: Any = None, **sections: Any) -> list[int]:
    """Return whether EnvRunners with three hung environments are restarted."""
    run = sampler(algo, sections, Group([1, 2], num_hung_envs=3))
    run.play_groups(1)
    return run.restarted


def patience(algo: str, env: Any = None, **sections: Any) -> str:
    """Return what is said after waiting for EnvRunners that do not come back."""
    now = [0.0]
    clock = types.SimpleNamespace(
        monotonic=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    run = sampler(algo, sections, Group([1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "time", clock)
        try:
            run._healthy_runners()
        except EnvRunnerError as error:
            return f"{now[0]} s: {error}"
    return "samples"


def nobody(algo: str, env: Any = None, **sections: Any) -> str:
    """Return what is said after waiting where none is healthy."""
    before = Group.healthy_env_runner_ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "healthy_env_runner_ids", lambda self: before(self)[:0])
        return patience(algo, env, **sections)


def call_limits(algo: str, env: Any = None, **sections: Any) -> list[float]:
    """Return the time limits of a call that samples, and of one that does not."""
    group = Group([1, 2])
    run: Any = sampler(algo, sections, group)
    run.play_groups(1)
    run.config.engine_sleep = True
    LLMAlgorithm._let_engines_sleep(run)
    return group.limits
