"""EnvRunner that samples complete text episodes, in groups, with engines."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.framework import get_device
from ray.rllib.utils.metrics import SAMPLE_TIMER

from rllib_llm.callbacks.episode_metrics import (
    log_candidates,
    log_engine,
    log_episodes,
    log_forks,
    log_waits,
    num_new_steps,
)
from rllib_llm.data.added_texts import TextSource
from rllib_llm.data.types import Task
from rllib_llm.engines.base import GenerationEngine
from rllib_llm.env_runner import build
from rllib_llm.env_runner.env_worker import EnvWorker
from rllib_llm.env_runner.non_llm_policies import NonLLMActor
from rllib_llm.env_runner.rollout import Rollout
from rllib_llm.env_runner.runner_state import RunnerState
from rllib_llm.env_runner.sample_callbacks import SampleCallbacks
from rllib_llm.env_runner.scripted_policies import Script
from rllib_llm.env_runner.task_groups import with_sources
from rllib_llm.env_runner.task_queue import GroupsWanted
from rllib_llm.env_runner.weights_check import WeightsCheck, checked_as
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.modules.loading import models_placed_on
from rllib_llm.torch_threads import choose_threads, torch_settings

if TYPE_CHECKING:
    from rllib_llm.types import Episode, LLMConfig


class LLMEnvRunner(RunnerState):
    """Samples whole episodes of a text environment with generation engines.

    Environments have one agent (Gymnasium) or several (PettingZoo). Policies that share
    a base model may share an engine.

    It differs from RLlib's stock runners in five points: it returns exactly the
    requested episodes (returning those that finish first would favour short ones),
    plays groups that share seed and options, overlaps environment calls with decoding,
    limits every wait, and retries or excludes episodes whose environment fails.

    Args:
        config: An algorithm config with :class:`LLMConfigMixin`.
        kwargs: Arguments of RLlib's EnvRunnerGroup (``worker_index`` and so on).

    Attributes:
        failures: Tasks without an episode in the last sample, with the stop reason.
        text_sources: Texts of this runner's own tasks (evaluation), by environment.
    """

    @override(EnvRunner)
    def __init__(self, *, config: LLMConfig, **kwargs: Any):
        super().__init__(config=config, **kwargs)
        self.spaces: dict[str, Any] = {}
        self._callbacks = SampleCallbacks(self.config, self.metrics)
        self._device = get_device(self.config, self._num_gpus())
        self.num_envs = self.config.num_envs_per_env_runner
        self._weights_seq_no = 0
        self.has_all_weights = False
        self.failures: list[tuple[Task, str]] = []
        self.text_sources: Mapping[str | None, TextSource] = {}
        # For sample() without tasks, as RLlib's evaluation calls it; in training the
        # driver sends tasks, so that groups are not split by accident.
        self._tasks = self.config.build_task_source(
            offset=self.worker_index or 0, in_evaluation=self.config.in_evaluation
        )
        self._env_to_module = self.config.build_env_to_module_connector(
            spaces=self.get_spaces(), device=self._device
        )
        self._module_to_env = self.config.build_module_to_env_connector(
            spaces=self.get_spaces()
        )
        self._monitor = build.monitor(self.config, self.worker_index or 0)
        self.module: Any = None
        self._rollout: Rollout | None = None
        self._abandoned: list[EnvWorker] = []
        self._assignment: build.PolicyAssignment | None = None
        self._scripted_overrides: dict[str, Script] = {}
        # Engines of models that answer questions and are not trained, by model.
        self.frozen_engines: dict[str, GenerationEngine] = {}
        self.make_env()
        self.make_module()

    def _num_gpus(self) -> float:
        """Return the number of GPUs that this runner may use.

        A local runner beside a local Learner shares the Learner's device and weights.
        If the engine holds a copy of the weights, the module only forwards them to it
        and stays on the CPU.
        """
        # vLLM samples from a copy; the module would waste the memory of the GPU.
        if self.config.generation_engine != "torch":
            return 0
        if not self.worker_index and not self.config.num_learners:
            return self.config.num_gpus_per_learner
        return self.config.num_gpus_per_env_runner if self.worker_index else 0

    # Building ------------------------------------------------------------------------

    @override(EnvRunner)
    def make_env(self) -> None:
        """Close the environments; the next sample() builds new ones."""
        if self._rollout is not None:
            self._rollout.close()
            # Threads with a hung call cannot be ended; they are counted until it
            # returns.
            self._abandoned += self._rollout.abandoned
            self._rollout = None

    @property
    def num_hung_envs(self) -> int:
        """Number of abandoned environments whose timed-out call still runs."""
        recent = [] if self._rollout is None else self._rollout.abandoned
        return sum(worker.is_running for worker in (*self._abandoned, *recent))

    @override(EnvRunner)
    def make_module(self) -> None:
        """Build the RLModule (without critics) and an engine for each policy."""
        config, spaces = self.config, self.get_spaces()
        if config.is_multi_agent:
            spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=True)
            with models_placed_on(self._device):
                self.module = spec.build()
            self.modules = {m: self.module[m] for m in config.llm_module_ids}
            for module_id in config.non_llm_module_ids:
                self.module[module_id].to(self._device)  # RLlib builds on the CPU
        else:
            spec = config.get_rl_module_spec(spaces=spaces, inference_only=True)
            self.module = spec.build()
            self.modules = {DEFAULT_MODULE_ID: self.module}
        for module in self.modules.values():
            module.to(self._device)
        self.num_threads = choose_threads(
            config.torch_num_threads,
            self.modules.values(),
            processes=config.num_env_runners or 1,
            device=self._device,
        )
        self.actors = {
            module_id: NonLLMActor(
                self.module[module_id],
                module_id,
                self.module[module_id].action_space,
                normalize_actions=config.normalize_actions,
                clip_actions=config.clip_actions,
            )
            for module_id in config.non_llm_module_ids
        }
        self.action_scorers = build.action_scorers(config, self.modules)
        # Scoring policies compute whole actions with the module and need no engine.
        self.engines = config.build_generation_engines(
            {m: self.modules[m] for m in self.modules if m not in self.action_scorers},
            beside_learner=not self.worker_index and not config.num_learners,
        )
        # Engines that share the module's tensors see new weights at once; the others
        # need the new version, and their copy must be compared with the module.
        copies = [m for m, e in self.engines.items() if not e.shares_weights]
        for module_id in copies:
            self._announce(module_id)
        self._weights_checks = [
            WeightsCheck(
                module_id,
                self.modules[module_id],
                self.engines[module_id],
                **checked_as(config.get_config_for_module(module_id)),
            )
            for module_id in copies
        ]

    @property
    def engine(self) -> GenerationEngine:
        """The only engine, which all policies share."""
        (engine,) = {id(e): e for e in self.engines.values()}.values()
        return engine

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Return text spaces for the environment and for each policy.

        The RLModuleSpec of a policy without a language model holds its own spaces.
        """
        spaces = (UnicodeText(), UnicodeText())
        return {
            INPUT_ENV_SPACES: spaces,
            INPUT_ENV_SINGLE_SPACES: spaces,
            **dict.fromkeys(self.config.module_ids, spaces),
        }

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """Check that the policies and their engines exist."""
        assert self.modules and (self.engines or self.action_scorers)

    # Sampling ------------------------------------------------------------------------

    @override(EnvRunner)
    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
        tasks: list[Task] | None = None,
        max_failed_fraction: float | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Play episodes to their end.

        Args:
            num_timesteps: Play until at least this many environment steps were taken.
            num_episodes: Play exactly this many episodes.
            explore: Sample at the configured temperature (True) or greedily (False);
                None takes the config's ``explore``.
            random_actions: Not supported.
            force_reset: Accepted for RLlib and without effect: no episode continues
                from an earlier sample.
            tasks: Play exactly these tasks; overrides the two counts.
            max_failed_fraction: With ``tasks``, in place of the config's.

        Returns:
            Finished episodes, in task order.
        """
        if random_actions:
            raise NotImplementedError(
                "sample(random_actions=True): language models do not support random "
                "actions. Leave the argument out, or raise the temperature."
            )
        explore = self.config.explore if explore is None else explore
        self._check_weights()
        with (
            self.metrics.log_time(SAMPLE_TIMER, reduce="sum"),
            torch_settings(self.num_threads),
        ):
            if tasks is not None:
                episodes = self._play(tasks, explore, max_failed_fraction)
            elif num_timesteps is not None:
                episodes = self._play_steps(num_timesteps, explore)
            else:
                episodes = self._play(
                    self._next_tasks(num_episodes or self.num_envs), explore
                )
        self._log_engines()
        return episodes

    def sample_groups(
        self, tasks: list[Task], wanted: GroupsWanted
    ) -> dict[int, list[Any]]:
        """Sample ahead: return the episodes of complete groups, go on with the others.

        Args:
            tasks: Tasks to add to those of earlier calls; groups must be whole.
            wanted: Groups to wait for.

        Returns:
            Finished episodes of complete groups by group_id; none of tasks that failed.
            The other groups continue in the next call, with the weights that the
            EnvRunner has then.
        """
        if not (self._rollout and self._rollout.num_unfinished_turns):
            # The check steps the engines, which would lose turns of the rollout.
            self._check_weights()
        with (
            self.metrics.log_time(SAMPLE_TIMER, reduce="sum"),
            torch_settings(self.num_threads),
        ):
            rollout = self._get_rollout(explore=True)
            groups, failures = rollout.run_groups(tasks, wanted)
            self._log_sample([e for each in groups.values() for e in each], failures)
        self._log_engines()
        return groups

    @property
    def idle_s(self) -> float:
        """Seconds between the last two calls of :meth:`sample_groups`."""
        return 0.0 if self._rollout is None else self._rollout.idle_s

    @property
    def groups_left(self) -> frozenset[int]:
        """Ids of the groups that :meth:`sample_groups` goes on with."""
        return frozenset() if self._rollout is None else self._rollout.groups

    def drop_groups(self) -> None:
        """Discard the groups that :meth:`sample_groups` has not returned."""
        if self._rollout is not None:
            self._rollout.abort()

    def _log_engines(self) -> None:
        for engine in {id(e): e for e in self.engines.values()}.values():
            log_engine(self.metrics, engine)
        log_waits(self.metrics, *self._monitor.take_stats())

    def _check_weights(self) -> None:
        """Check that engines with a copy of the weights compute what modules do."""
        for check in self._weights_checks:
            for name, count in check().items():
                # The engine counts the check's tokens; subtract them, so that the
                # metrics cover the episodes alone.
                self.metrics.log_value(("engine", name), -count, reduce="sum")

    def _next_tasks(self, num_episodes: int) -> list[Task]:
        if self.config.in_evaluation:
            # The same held-out tasks every time, distributed over the runners.
            # Remote EnvRunners are numbered from 1; 0 is the local one.
            first = max(0, (self.worker_index or 1) - 1)
            tasks = self._tasks.fixed(num_episodes, first, max(1, self.num_workers))
            return with_sources(tasks, self.text_sources)
        return self._tasks.next_groups(
            math.ceil(num_episodes / self._tasks.group_size)
        )[:num_episodes]

    def _play_steps(self, num_timesteps: int, explore: bool) -> list[Any]:
        episodes: list[Any] = []
        while sum(map(len, episodes)) < num_timesteps:
            # Whole episodes only, so the count can exceed num_timesteps.
            episodes += self._play(self._next_tasks(self.num_envs), explore)
        return episodes

    def _play(
        self,
        tasks: list[Task],
        explore: bool,
        max_failed_fraction: float | None = None,
    ) -> list[Any]:
        rollout = self._get_rollout(explore)
        episodes = rollout.run(
            tasks, explore=explore, max_failed_fraction=max_failed_fraction
        )
        self._log_sample(episodes, rollout.failures)
        return episodes

    def _log_sample(
        self, episodes: list[Any], failures: list[tuple[Task, str]]
    ) -> None:
        self.failures = failures
        # RLlib's runners count the same way; schedules depend on it.
        self.num_env_steps_sampled_lifetime += sum(map(num_new_steps, episodes))
        log_episodes(self.metrics, episodes, len(failures))
        if self.config.fork is not None:
            log_forks(self.metrics, episodes)
        if self.config.candidates > 1:
            log_candidates(self.metrics, episodes)
        self._callbacks.call("on_sample_end", env_runner=self, samples=episodes)

    def set_scripted_policy(self, module_id: str, script: Script) -> None:
        """Replace the function of a scripted policy from the next sample() on."""
        self._scripted_overrides[module_id] = script

    @contextlib.contextmanager
    def assignment(
        self, policies: Mapping[str, str], scripts: Mapping[str, Script] | None = None
    ) -> Iterator[None]:
        """Assign policies to agents inside the block, in place of the config's mapping.

        Args:
            policies: ModuleID, or name of a scripted policy, by AgentID.
            scripts: Scripted policies by name.
        """
        # The rollout holds the action sources: drop it, so that the next one is built
        # with (and after the block without) the assignment.
        self.make_env()
        self._assignment = build.PolicyAssignment(policies, scripts or {})
        try:
            yield
        finally:
            self.make_env()
            self._assignment = None

    def _get_rollout(self, explore: bool) -> Rollout:
        config = self.config
        if self._rollout is None:
            self._action_sources = build.action_sources(
                config, self.engines, self.actors, self.action_scorers, self._assignment
            )
            self._rollout = Rollout(
                make_env=build.env_factory(config),
                make_recorder=build.recorder_factory(config, self._assignment),
                action_sources=self._action_sources,
                env_to_module=self._env_to_module,
                module_to_env=self._module_to_env,
                num_slots=self.num_envs,
                limits=build.limits(config),
                module=self.module,
                on_event=self._on_episode_event,
                monitor=self._monitor,
                fork_rule=build.fork_rule(config),
            )
        for module_id, script in self._scripted_overrides.items():
            self._action_sources[module_id].script = script
        for module_id in self.engines:
            policy_config = config.get_config_for_module(module_id)
            self._action_sources[module_id].sampling = policy_config.sampling_params(
                explore=explore
            )
        return self._rollout

    def _on_episode_event(self, name: str, episode: Episode) -> None:
        self._callbacks.call(
            name,
            episode=episode,
            env_runner=self,
            env=None,
            rl_module=self.module,
            env_index=0,
        )

    @override(EnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        """Return and reset the metrics logged since the last call."""
        return self.metrics.reduce()

    @override(EnvRunner)
    def stop(self) -> None:
        """Close the environments."""
        self.make_env()
