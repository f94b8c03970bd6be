"""Playing tasks on EnvRunners, whatever becomes of them meanwhile."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_llm.algorithms.driver.runner_calls import (
    Sampled,
    SampleTasks,
    deal,
    exit_if_hung,
    sample_and_metrics,
)
from rllib_llm.data.types import Task
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import EnvRunnerError

logger = logging.getLogger("rllib_llm")

_PROBE_S = 1.0  # seconds between two looks at EnvRunners that restart


class SamplingAlgorithm:
    """Samples on all healthy EnvRunners, by the rules of ``fault_tolerance``.

    Put it before the Algorithm class in the bases.
    """

    def play_groups(self, num_groups: int) -> list[Any]:
        """Play the next ``num_groups`` groups, spread over the EnvRunners by group.

        Returns:
            Finished episodes, paid by the environment alone.

        Raises:
            EnvRunnerError: If there is no EnvRunner to play them.
        """
        if not issubclass(self.env_runner_group.env_runner_cls, LLMEnvRunner):
            return self._sample_with_stock_runners(num_groups)
        tasks = self._task_source.next_groups(num_groups)
        tasks = self._driver_components.assign(tasks, self.iteration)
        num_runners = self.env_runner_group.num_remote_workers()
        answers, num_asked = self._ask_runners(tasks)
        episodes = [e for each in answers for e in each.episodes]
        self.metrics.aggregate([a.metrics for a in answers], key=ENV_RUNNER_RESULTS)
        lost = 0
        if len(answers) < num_asked:
            dead = num_asked - len(answers)
            lost = len(tasks) - len(episodes)
            logger.warning("%s EnvRunners died; %s episodes lost.", dead, lost)
        hung = [each.num_hung_envs for each in answers]
        for name, value in (
            ("num_episodes_lost", lost),
            # An EnvRunner beside remote ones plays where none of these is healthy.
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

    def play_apart(self, tasks: list[Task], *, explore: bool) -> list[Any]:
        """Play tasks that are not this iteration's; runners forget their metrics."""
        answers, _ = self._ask_runners(tasks, explore)
        return [e for each in answers for e in each.episodes]

    def _ask_runners(
        self, tasks: list[Task], explore: bool | None = None
    ) -> tuple[list[Sampled], int]:
        """Return the EnvRunners' answers, and how many remote ones were asked."""
        runners = self._healthy_runners()
        if not runners:
            return [SampleTasks(tasks, explore)(self.env_runner)], 0
        calls = [SampleTasks(part, explore) for part in deal(tasks, len(runners))]
        answers = self.env_runner_group.foreach_env_runner(
            calls, local_env_runner=False, remote_worker_ids=runners
        )
        return answers, len(runners)

    def _healthy_runners(self) -> list[int]:
        """Return the ids of healthy EnvRunners; none where the local one is to sample.

        Raises:
            EnvRunnerError: If all have failed, none comes back in time, and the local
                one must not sample in their place.
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
        patience = 0.0
        if config.restart_failed_env_runners:
            patience = config.delay_between_env_runner_restarts_s
            patience += config.env_runner_health_probe_timeout_s
            logger.warning(
                "None of %s EnvRunners is healthy; waiting up to %.0f s for one.",
                num_remote,
                patience,
            )
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            self.restore_env_runners(group)
            runners = group.healthy_env_runner_ids()
            if runners:
                return runners
            time.sleep(_PROBE_S)
        raise EnvRunnerError(
            f"None of {num_remote} EnvRunners is healthy, and none came back within "
            f"{patience:.0f} s (fault_tolerance.delay_between_env_runner_restarts_s + "
            "env_runner_health_probe_timeout_s). Read their log for why they died; the "
            "run goes on from its newest checkpoint with tune.max_failures, or with "
            "--resume. fault_tolerance.sample_locally_if_none=True samples on the "
            "driver meanwhile."
        )

    def _restart_hung(self, most: int, *, is_local: bool) -> None:
        """Let EnvRunners exit that hold too many hung environments; Ray restarts them.

        Their episodes of this iteration have arrived.
        """
        limit = self.config.max_hung_envs_per_env_runner
        what = (
            f"An EnvRunner holds {most} environments that hang in a call, each with a "
            f"thread and its memory, more than max_hung_envs_per_env_runner={limit}."
        )
        if is_local or not self.config.restart_failed_env_runners:
            logger.warning(
                "%s It cannot be restarted: use env_runners.num_env_runners=1 or more "
                "with restart_failed_env_runners, or give the environment a time limit "
                "of its own.",
                what,
            )
            return
        logger.warning("%s Such EnvRunners are restarted.", what)
        self.env_runner_group.foreach_env_runner(
            functools.partial(exit_if_hung, limit=limit), local_env_runner=False
        )

    def _sample_with_stock_runners(self, num_episodes: int) -> list[Any]:
        """Compatibility mode: RLlib's own sampler, without tasks and groups."""
        episodes: list[Any] = []
        while len(episodes) < num_episodes:
            answers = self.env_runner_group.foreach_env_runner(
                sample_and_metrics,
                local_env_runner=not self.env_runner_group.num_remote_workers(),
            )
            episodes += [e for part, _ in answers for e in part]
            self.metrics.aggregate([m for _, m in answers], key=ENV_RUNNER_RESULTS)
        return episodes
