"""Sampling of tasks on EnvRunners, with restarts and fallbacks."""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_llm.algorithms.driver.runner_calls import (
    SampleResult,
    SampleTasks,
    exit_if_hung,
    sample_and_metrics,
    split_by_group,
)
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import EnvRunnerError
from rllib_llm.rllib_bases import RLlibAlgorithm

if TYPE_CHECKING:
    from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
    from rllib_llm.algorithms.driver.sample_ahead import SampleAhead
    from rllib_llm.env_runner.task_groups import TaskSource

logger = logging.getLogger("rllib_llm")

_PROBE_S = 1.0  # seconds between two probes of restarting EnvRunners


class SamplingAlgorithm(RLlibAlgorithm):
    """Mixin that samples on all healthy EnvRunners, as ``fault_tolerance`` says.

    Put it before the Algorithm class in the bases.
    """

    _task_source: TaskSource
    _driver_components: DriverComponents
    _ahead: SampleAhead | None = None

    def play_groups(self, num_groups: int) -> list[Any]:
        """Sample the next ``num_groups`` groups, distributed over EnvRunners by group.

        Returns:
            Finished episodes with the environment's rewards.

        Raises:
            EnvRunnerError: If there is no EnvRunner to sample them.
        """
        if not issubclass(self.env_runner_group.env_runner_cls, LLMEnvRunner):
            return self._sample_with_stock_runners(num_groups)
        if self._ahead is not None:
            return self._take_ahead(self._ahead)
        tasks = self.next_tasks(num_groups)
        num_runners = self.env_runner_group.num_remote_workers()
        results, num_asked = self._ask_runners(tasks)
        episodes = [e for each in results for e in each.episodes]
        self.metrics.aggregate([a.metrics for a in results], key=ENV_RUNNER_RESULTS)
        lost = 0
        # RLlib omits the results of EnvRunners that died during the call.
        if len(results) < num_asked:
            dead = num_asked - len(results)
            lost = len(tasks) - len(episodes)
            logger.warning("%s EnvRunners died; %s episodes lost.", dead, lost)
        hung = [each.num_hung_envs for each in results]
        for name, value in (
            ("num_episodes_lost", lost),
            # A local EnvRunner samples only where no remote one is healthy.
            (
                "num_episodes_sampled_locally",
                len(episodes) if num_runners and not num_asked else 0,
            ),
            ("num_hung_envs", sum(hung)),
        ):
            # In every iteration: RLlib reports NaN for a sum of nothing.
            self.metrics.log_value(name, value, reduce="sum")
        if max(hung, default=0) > self.config.max_hung_envs_per_env_runner:
            self._restart_hung(max(hung), is_local=not num_asked)
        return episodes

    def next_tasks(self, num_groups: int) -> list[Task]:
        """Return the tasks of the next groups, as the curriculum changes them."""
        # Before the tasks are split over EnvRunners: a curriculum has one state, on the
        # driver.
        tasks = self._task_source.next_groups(num_groups)
        return self._driver_components.assign(tasks, self.iteration)

    def _take_ahead(self, ahead: SampleAhead) -> list[Any]:
        """Return the next batch of groups that are sampled ahead."""
        batch = ahead.take(self._healthy_runners)
        self.metrics.aggregate(
            [each.metrics for each in batch.results], key=ENV_RUNNER_RESULTS
        )
        hung = max((each.num_hung_envs for each in batch.results), default=0)
        for name, value in (
            ("num_episodes_lost", batch.num_lost),
            ("num_episodes_sampled_locally", 0),
            ("num_hung_envs", hung),
            ("num_groups_retried", batch.num_resampled),
            ("sample_wait_s", batch.waited_s),
        ):
            self.metrics.log_value(name, value, reduce="sum")
        if hung > self.config.max_hung_envs_per_env_runner:
            self._restart_hung(hung, is_local=False)
        return batch.episodes

    def play_extra_tasks(self, tasks: list[Task], *, explore: bool) -> list[Any]:
        """Sample tasks outside the iteration's; EnvRunners drop their metrics."""
        results, _ = self._ask_runners(tasks, explore)
        return [e for each in results for e in each.episodes]

    def _ask_runners(
        self, tasks: list[Task], explore: bool | None = None
    ) -> tuple[list[SampleResult], int]:
        """Return the EnvRunners' results, and the number of remote ones called."""
        runners = self._healthy_runners()
        if not runners:
            assert self.env_runner is not None  # _healthy_runners() requires it
            return [SampleTasks(tasks, explore)(self.env_runner)], 0
        calls = [
            SampleTasks(part, explore) for part in split_by_group(tasks, len(runners))
        ]
        # One call per id; the local EnvRunner must not sample a part as well.
        results = self.env_runner_group.foreach_env_runner(
            calls, local_env_runner=False, remote_worker_ids=runners
        )
        return results, len(runners)

    def _healthy_runners(self) -> list[int]:
        """Return the ids of healthy EnvRunners; none if the local one samples.

        Raises:
            EnvRunnerError: If all have failed, none restarts in time, and the local
                one must not replace them.
        """
        group, config = self.env_runner_group, self.config
        runners = group.healthy_env_runner_ids()
        num_remote = group.num_remote_workers()
        if runners or (not num_remote and self.env_runner is not None):
            return runners
        if config.sample_locally_if_none:
            logger.warning(
                "None of %s EnvRunners is healthy: the local one samples this "
                "iteration alone (fault_tolerance.sample_locally_if_none).",
                num_remote,
            )
            return []
        timeout_s = 0.0
        if config.restart_failed_env_runners:
            timeout_s = config.delay_between_env_runner_restarts_s
            timeout_s += config.env_runner_health_probe_timeout_s
            logger.warning(
                "None of %s EnvRunners is healthy; waiting up to %.0f s for one.",
                num_remote,
                timeout_s,
            )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.restore_env_runners(group)
            runners = group.healthy_env_runner_ids()
            if runners:
                return runners
            time.sleep(_PROBE_S)
        raise EnvRunnerError(
            f"None of {num_remote} EnvRunners is healthy, and none restarted within "
            f"{timeout_s:.0f} s (fault_tolerance.delay_between_env_runner_restarts_s + "
            "env_runner_health_probe_timeout_s). Read their logs for the cause. The "
            "run continues from its newest checkpoint with tune.max_failures, or with "
            "--resume; fault_tolerance.sample_locally_if_none=True samples on the "
            "driver instead."
        )

    def _restart_hung(self, most: int, *, is_local: bool) -> None:
        """Let EnvRunners with too many hung environments exit; Ray restarts them.

        Their episodes of this iteration have already arrived.
        """
        limit = self.config.max_hung_envs_per_env_runner
        problem = (
            f"An EnvRunner holds {most} environments that hang in a call, each with a "
            f"thread and its memory, more than max_hung_envs_per_env_runner={limit}."
        )
        # The local EnvRunner is the driver's own process, and without restarts the exit
        # would lose an EnvRunner for good.
        if is_local or not self.config.restart_failed_env_runners:
            logger.warning(
                "%s It cannot be restarted: use env_runners.num_env_runners=1 or more "
                "with restart_failed_env_runners, or add a time limit to the "
                "environment.",
                problem,
            )
            return
        logger.warning("%s Such EnvRunners are restarted.", problem)
        self.env_runner_group.foreach_env_runner(
            functools.partial(exit_if_hung, limit=limit), local_env_runner=False
        )

    def _sample_with_stock_runners(self, num_episodes: int) -> list[Any]:
        """Sample with RLlib's stock runners, without tasks and groups."""
        episodes: list[Any] = []
        # Stock runners return as many episodes as they finish, so there may be more in
        # the end.
        while len(episodes) < num_episodes:
            answers = self.env_runner_group.foreach_env_runner(
                sample_and_metrics,
                local_env_runner=not self.env_runner_group.num_remote_workers(),
            )
            episodes += [e for part, _ in answers for e in part]
            self.metrics.aggregate([m for _, m in answers], key=ENV_RUNNER_RESULTS)
        return episodes
