"""Sampling of tasks on EnvRunners, with restarts and fallbacks."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_llm.algorithms.driver.runner_calls import (
    SampleResult,
    SampleTasks,
    exit_if_hung,
    sample_and_metrics,
    split_by_group,
)
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.data.episode_data import task_of
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import EnvRunnerError
from rllib_llm.rllib_bases import RLlibAlgorithm

if TYPE_CHECKING:
    from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
    from rllib_llm.algorithms.driver.sample_ahead import SampleAhead
    from rllib_llm.algorithms.driver.weight_sync import WeightSync
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
    weight_sync: WeightSync
    _weights_version: int | None = None  # of the last weights that were sent

    def play_groups(self, num_groups: int) -> list[Any]:
        """Sample the next ``num_groups`` groups, distributed over EnvRunners by group.

        Returns:
            Finished episodes with the environment's rewards, in the order of the tasks.

        Raises:
            EnvRunnerError: If there are too few EnvRunners to sample them. A checkpoint
                that is written then continues with the tasks of this iteration.
        """
        if not issubclass(self.env_runner_group.env_runner_cls, LLMEnvRunner):
            return self._sample_with_stock_runners(num_groups)
        if self._ahead is not None:
            return self._take_ahead(self._ahead)
        before = self._task_source.get_state(), self._driver_components.get_state()
        tasks = self.next_tasks(num_groups)
        try:
            played = self._play(tasks)
        except EnvRunnerError:
            # Nothing of this iteration is kept, so its tasks come again.
            self._task_source.set_state(before[0])
            self._driver_components.set_state(before[1])
            raise
        self.metrics.aggregate(
            [each.metrics for each in played.results], key=ENV_RUNNER_RESULTS
        )
        episodes = played.episodes_of(tasks)
        hung = [each.num_hung_envs for each in played.results]
        has_remote = bool(self.env_runner_group.num_remote_workers())
        for name, value in (
            ("num_episodes_lost", played.num_lost),
            ("num_groups_retried", played.num_retried),
            # A local EnvRunner samples only where no remote one is healthy.
            (
                "num_episodes_sampled_locally",
                len(episodes) if has_remote and played.is_local else 0,
            ),
            ("num_hung_envs", sum(hung)),
        ):
            # In every iteration: RLlib reports NaN for a sum of nothing.
            self.metrics.log_value(name, value, reduce="sum")
        if max(hung, default=0) > self.config.max_hung_envs_per_env_runner:
            self._restart_hung(max(hung), is_local=played.is_local)
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
        for name, share in (
            ("learner_idle_frac", batch.learner_idle_frac),
            ("sampler_idle_frac", batch.sampler_idle_frac),
        ):
            self.metrics.log_value(name, share, window=1)
        if hung > self.config.max_hung_envs_per_env_runner:
            self._restart_hung(hung, is_local=False)
        return batch.episodes

    def play_extra_tasks(self, tasks: list[Task], *, explore: bool) -> list[Any]:
        """Sample tasks outside the iteration's; EnvRunners drop their metrics."""
        return self._play(tasks, explore).episodes_of(tasks)

    def _play(self, tasks: list[Task], explore: bool | None = None) -> Played:
        """Sample tasks, and those of EnvRunners that die again on others."""
        played, attempts = Played(), collections.Counter[int]()
        while True:
            results, played.is_local = self._ask_runners(tasks, explore)
            played.results += results
            done = {group for each in results for group in each.group_ids}
            missing = [task for task in tasks if task.group_id not in done]
            if not missing:
                return played
            # A group that ends each EnvRunner that samples it must not end them all.
            attempts.update({task.group_id for task in missing})
            limit = self.config.max_retries
            tasks = [task for task in missing if attempts[task.group_id] <= limit]
            played.num_lost += len(missing) - len(tasks)
            again = len({task.group_id for task in tasks})
            played.num_retried += again
            logger.warning(
                "EnvRunners were lost while they sampled: %s groups are sampled again, "
                "%s episodes are lost after rollouts.max_retries=%s.",
                again,
                len(missing) - len(tasks),
                limit,
            )
            if not tasks:
                return played

    def _ask_runners(
        self, tasks: list[Task], explore: bool | None = None
    ) -> tuple[list[SampleResult], bool]:
        """Return EnvRunners' results, and whether the local one sampled alone."""
        runners = self._healthy_runners()
        if not runners:
            assert self.env_runner is not None  # _healthy_runners() requires it
            result = SampleTasks(tasks, explore)(self.env_runner)
            assert result is not None  # it has no version to compare
            return [result], True
        split = split_by_group(tasks, len(runners))
        parts = {r: part for r, part in zip(runners, split, strict=True) if part}
        results: dict[int, SampleResult] = {}
        while parts:
            answers = self._sample_on(parts, explore)
            results |= {r: given for r, given in answers.items() if given is not None}
            # They have restarted since the last call; their tasks wait for weights.
            lacking = [r for r, given in answers.items() if given is None]
            if lacking:
                self.update_restarted(lacking)
            parts = {runner: parts[runner] for runner in lacking}
        return [results[runner] for runner in sorted(results)], False

    def _sample_on(
        self, parts: Mapping[int, list[Task]], explore: bool | None
    ) -> dict[int, SampleResult | None]:
        """Return the answers of EnvRunners to their tasks; None: they lack weights."""
        version = self._weights_version
        return call_runners(
            self.env_runner_group,
            {r: SampleTasks(part, explore, version) for r, part in parts.items()},
            runners=list(parts),
            limit=self.config.batch_limit,
            version=version,
        )

    def update_restarted(self, runners: list[int]) -> None:
        """Send all weights to EnvRunners that have restarted between two calls."""
        logger.warning("EnvRunners %s have restarted; they get all weights.", runners)
        sent = self.weight_sync.send_all(self.env_runner_group, runners)
        self._weights_version = sent.version
        self.metrics.log_value("weight_sync_mib", sent.mib, reduce="sum")

    def _healthy_runners(self) -> list[int]:
        """Return the ids of healthy EnvRunners; none if the local one samples.

        Raises:
            EnvRunnerError: If there are fewer than ``min_healthy_env_runners``, others
                do not restart in time, and the local one must not replace them.
        """
        group, config = self.env_runner_group, self.config
        runners = group.healthy_env_runner_ids()
        num_remote = group.num_remote_workers()
        if not num_remote and self.env_runner is not None:
            return runners
        if len(runners) >= config.min_healthy_env_runners:
            return runners
        if config.sample_locally_if_none:
            logger.warning(
                "None of %s EnvRunners is healthy: the local one samples this "
                "iteration alone (fault_tolerance.sample_locally_if_none).",
                num_remote,
            )
            return []
        return self._wait_for_runners(len(runners), num_remote)

    def _wait_for_runners(self, num_healthy: int, num_remote: int) -> list[int]:
        """Return the ids of healthy EnvRunners once there are enough of them."""
        group, config = self.env_runner_group, self.config
        required = (
            f"fault_tolerance.min_healthy_env_runners={config.min_healthy_env_runners}"
        )
        timeout_s = 0.0
        if config.restart_failed_env_runners:
            timeout_s = config.longest_wait_s
            logger.warning(
                "%s of %s EnvRunners are healthy, fewer than %s; waiting up to %.0f s "
                "for others.",
                num_healthy,
                num_remote,
                required,
                timeout_s,
            )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.restore_env_runners(group)
            runners = group.healthy_env_runner_ids()
            if len(runners) >= config.min_healthy_env_runners:
                return runners
            time.sleep(_PROBE_S)
        raise EnvRunnerError(
            f"{len(group.healthy_env_runner_ids())} of {num_remote} EnvRunners are "
            f"healthy, fewer than {required}, and not enough restarted within "
            f"{timeout_s:.0f} s (fault_tolerance.min_healthy_timeout_s; by default "
            "delay_between_env_runner_restarts_s + env_runner_health_probe_timeout_s). "
            "Read their logs for the cause. The run continues from its newest "
            "checkpoint with tune.max_failures, or with --resume. Raise the limit if "
            "machines need longer to return, or lower min_healthy_env_runners; "
            "sample_locally_if_none=True samples on the driver instead."
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
        # Those that exit die in the call.
        call_runners(
            self.env_runner_group,
            functools.partial(exit_if_hung, limit=limit),
            limit=self.config.call_limit,
            version=self._weights_version,
        )

    def _sample_with_stock_runners(self, num_episodes: int) -> list[Any]:
        """Sample with RLlib's stock runners, without tasks and groups."""
        episodes: list[Any] = []
        # Stock runners return as many episodes as they finish, so there may be more in
        # the end.
        while len(episodes) < num_episodes:
            runners = self._healthy_runners()
            answers = call_runners(
                self.env_runner_group,
                sample_and_metrics,
                runners=runners,
                limit=self.config.batch_limit,
                version=None,
            )
            if not runners:
                assert self.env_runner is not None  # _healthy_runners() requires it
                answers = {0: sample_and_metrics(self.env_runner)}
            episodes += [e for part, _ in answers.values() for e in part]
            self.metrics.aggregate(
                [m for _, m in answers.values()], key=ENV_RUNNER_RESULTS
            )
        return episodes


@dataclasses.dataclass
class Played:
    """Results of tasks, after repetitions.

    Attributes:
        results: Those of EnvRunners that have answered.
        num_lost: Episodes that were lost with too many EnvRunners.
        num_retried: Groups that were lost with an EnvRunner and sampled again.
        is_local: Whether the local EnvRunner sampled alone.
    """

    results: list[SampleResult] = dataclasses.field(default_factory=list)
    num_lost: int = 0
    num_retried: int = 0
    is_local: bool = False

    def episodes_of(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the episodes in the order of their tasks.

        So a batch does not depend on which EnvRunner sampled which group.
        """
        places = {(t.group_id, t.rollout): place for place, t in enumerate(tasks)}
        episodes = [e for each in self.results for e in each.episodes]

        def place(episode: Any) -> int:
            task = task_of(episode)
            return places[task.group_id, task.rollout]

        return sorted(episodes, key=place)
