"""RLlib's EnvRunner for language agents: exact episodes, groups, one engine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import ray
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.framework import get_device
from ray.rllib.utils.metrics import (
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    SAMPLE_TIMER,
    WEIGHTS_SEQ_NO,
)
from ray.rllib.utils.typing import StateDict

from rllib_llm.callbacks.episode_metrics import log_engine, log_episodes, log_waits
from rllib_llm.data.types import Task
from rllib_llm.engines.base import GenerationEngine
from rllib_llm.env_runner import build
from rllib_llm.env_runner.env_worker import EnvWorker
from rllib_llm.env_runner.non_llm_policies import NonLLMActor, share_tensors
from rllib_llm.env_runner.rollout import Rollout
from rllib_llm.env_runner.scripted_policies import Script
from rllib_llm.env_runner.weights_check import WeightsCheck, tolerance_of
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.weights import copy_into, unpack


class LLMEnvRunner(EnvRunner, Checkpointable):
    """Samples whole episodes of a text environment with generation engines.

    Environments have one agent (Gymnasium) or several (PettingZoo); each policy has an
    engine of its own.

    Differs from RLlib's stock runner where language agents need it: it returns exactly
    the asked episodes (never the first to finish, which favours short ones), plays
    groups that share seed and options, overlaps environment calls with decoding,
    bounds every wait, and retries or excludes episodes whose environment fails.

    Args:
        config: An algorithm config with :class:`LLMConfigMixin`.
        kwargs: What RLlib's EnvRunnerGroup passes (``worker_index`` and so on).

    Attributes:
        modules: The language-model policies, by ModuleID.
        engines: What samples their turns, by ModuleID.
        actors: What acts for classic RLModules, by ModuleID.
        choosers: What acts for policies over admissible actions, by ModuleID.
        failures: Tasks that the last sampling left out, and why.
        has_all_weights: Whether the Learner's weights have arrived in full once; from
            then on those that training changes are enough.
    """

    @override(EnvRunner)
    def __init__(self, *, config: Any, **kwargs: Any):
        super().__init__(config=config, **kwargs)
        self.spaces = {}
        self._callbacks = [
            c() for c in _as_list(self.config.callbacks_class) if c is not None
        ]
        self._handlers: dict[str, list[Callable[..., None]]] = {}
        self._device = get_device(self.config, self._num_gpus())
        self.num_envs = self.config.num_envs_per_env_runner
        self._weights_seq_no = 0
        self.has_all_weights = False
        self.failures: list[tuple[Task, str]] = []
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
        self._taught: dict[str, Script] = {}
        self.make_env()
        self.make_module()

    def _num_gpus(self) -> float:
        """Return how many GPUs this runner may use.

        A local runner beside a local learner shares the learner's device and weights.
        The module of an engine with its own copy only passes weights on, on the CPU.
        """
        if self.config.generation_engine != "torch":
            return 0
        if not self.worker_index and not self.config.num_learners:
            return self.config.num_gpus_per_learner
        return self.config.num_gpus_per_env_runner if self.worker_index else 0

    # Building ------------------------------------------------------------------------

    @override(EnvRunner)
    def make_env(self) -> None:
        """Forget the environments; the next sample builds them anew."""
        if self._rollout is not None:
            self._rollout.close()
            self._abandoned += self._rollout.abandoned
            self._rollout = None

    @property
    def num_hung_envs(self) -> int:
        """Environments given up because a call timed out, and still in that call."""
        recent = [] if self._rollout is None else self._rollout.abandoned
        return sum(worker.is_running for worker in (*self._abandoned, *recent))

    @override(EnvRunner)
    def make_module(self) -> None:
        """Build the RLModule (without critics) and an engine for each policy."""
        config, spaces = self.config, self.get_spaces()
        if config.is_multi_agent:
            spec = config.get_multi_rl_module_spec(spaces=spaces, inference_only=True)
            self.module = spec.build()
            self.modules = {m: self.module[m] for m in config.llm_module_ids}
            for module_id in config.non_llm_module_ids:
                self.module[module_id].to(self._device)
        else:
            spec = config.get_rl_module_spec(spaces=spaces, inference_only=True)
            self.module = spec.build()
            self.modules = {DEFAULT_MODULE_ID: self.module}
        for module in self.modules.values():
            module.to(self._device)
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
        self.engines = config.build_generation_engines(
            {m: self.modules[m] for m in self.modules if m not in self.action_scorers}
        )
        copies = [m for m, e in self.engines.items() if not e.shares_weights]
        for module_id in copies:
            self._announce(module_id)
        self._weights_checks = [
            WeightsCheck(
                module_id,
                self.modules[module_id],
                self.engines[module_id],
                tolerance_of(config.get_config_for_module(module_id)),
            )
            for module_id in copies
        ]

    @property
    def engine(self) -> GenerationEngine:
        """The engine of the only policy."""
        (engine,) = {id(e): e for e in self.engines.values()}.values()
        return engine

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Text in, text out, for the environment and for policies that are no RLModule.

        What those of RLModules are, the specification of each says.
        """
        spaces = (UnicodeText(), UnicodeText())
        return {
            INPUT_ENV_SPACES: spaces,
            INPUT_ENV_SINGLE_SPACES: spaces,
            **dict.fromkeys(self.config.module_ids, spaces),
        }

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """The policies and their engines exist."""
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
            num_timesteps: Play until at least that many turns were taken.
            num_episodes: Play exactly that many episodes.
            explore: Sample at the configured temperature (True) or greedily (False);
                None takes the config's ``explore``.
            random_actions: Not supported by language policies.
            force_reset: Accepted for RLlib; episodes always start afresh here.
            tasks: Play exactly these; overrides the two counts.
            max_failed_fraction: With ``tasks``, in place of the config's.

        Returns:
            Finished episodes, in task order.
        """
        if random_actions:
            raise NotImplementedError("A language policy has no random actions.")
        explore = self.config.explore if explore is None else explore
        self._check_weights()
        with self.metrics.log_time(SAMPLE_TIMER, reduce="sum"):
            if tasks is not None:
                episodes = self._play(tasks, explore, max_failed_fraction)
            elif num_timesteps is not None:
                episodes = self._play_steps(num_timesteps, explore)
            else:
                episodes = self._play(
                    self._own_tasks(num_episodes or self.num_envs), explore
                )
        for engine in {id(e): e for e in self.engines.values()}.values():
            log_engine(self.metrics, engine)
        log_waits(self.metrics, *self._monitor.take_stats())
        return episodes

    def _check_weights(self) -> None:
        """Stop if an engine with a copy of the weights computes something else."""
        for check in self._weights_checks:
            for name, count in check().items():  # no work for the episodes
                self.metrics.log_value(("engine", name), -count, reduce="sum")

    def _own_tasks(self, num_episodes: int) -> list[Task]:
        if self.config.in_evaluation:
            # The same held-out tasks every time, dealt out to the runners in turn.
            first = max(0, (self.worker_index or 1) - 1)
            return self._tasks.fixed(num_episodes, first, max(1, self.num_workers))
        return self._tasks.next_groups(
            math.ceil(num_episodes / self._tasks.group_size)
        )[:num_episodes]

    def _play_steps(self, num_timesteps: int, explore: bool) -> list[Any]:
        episodes: list[Any] = []
        while sum(map(len, episodes)) < num_timesteps:
            episodes += self._play(self._own_tasks(self.num_envs), explore)
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
        self.failures = rollout.failures
        self.num_env_steps_sampled_lifetime += sum(map(len, episodes))
        log_episodes(self.metrics, episodes, len(self.failures))
        self._fire("on_sample_end", env_runner=self, samples=episodes)
        return episodes

    def teach(self, module_id: str, script: Script) -> None:
        """Let another function play a scripted policy from the next sample on."""
        self._taught[module_id] = script

    @contextlib.contextmanager
    def assignment(
        self, policies: Mapping[str, str], scripts: Mapping[str, Script] | None = None
    ) -> Iterator[None]:
        """Let given policies act for given agents meanwhile.

        Args:
            policies: ModuleID, or name of a script, by AgentID.
            scripts: Functions that play, by name.
        """
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
                make_env=config.make_sampled_env,
                make_recorder=build.recorder_factory(config, self._assignment),
                action_sources=self._action_sources,
                env_to_module=self._env_to_module,
                module_to_env=self._module_to_env,
                num_slots=self.num_envs,
                limits=build.limits(config),
                module=self.module,
                on_event=self._on_episode_event,
                monitor=self._monitor,
            )
        for module_id, script in self._taught.items():
            self._action_sources[module_id].script = script
        for module_id in self.engines:
            own = config.get_config_for_module(module_id)
            self._action_sources[module_id].sampling = own.sampling_params(
                explore=explore
            )
        return self._rollout

    def _on_episode_event(self, name: str, episode: Any) -> None:
        self._fire(
            name,
            episode=episode,
            env_runner=self,
            env=None,
            rl_module=self.module,
            env_index=0,
        )

    def _fire(self, name: str, **kwargs: Any) -> None:
        if name not in self._handlers:
            methods = [
                getattr(callback, name)
                for callback in self._callbacks
                # The base class does nothing, and some events come at every turn.
                if getattr(type(callback), name) is not getattr(RLlibCallback, name)
            ]
            functions = _as_list(getattr(self.config, f"callbacks_{name}", None))
            self._handlers[name] = methods + [f for f in functions if f is not None]
        for handler in self._handlers[name]:
            handler(metrics_logger=self.metrics, **kwargs)

    @override(EnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        """Return and reset what was logged since the last call."""
        return self.metrics.reduce()

    # State ---------------------------------------------------------------------------

    def share_weights_of(self, modules: Mapping[str, Any]) -> None:
        """Sample with the parameters of ``modules`` themselves (same process only)."""
        for module_id, module in self.modules.items():
            module.share_parameters_with(modules[module_id])
        for module_id, actor in self.actors.items():
            share_tensors(actor.module, modules[module_id])
        self.set_weights_version(self._weights_seq_no)

    def set_weights_version(self, version: int) -> None:
        """Say that policies changed: cached keys and values are stale."""
        self._weights_seq_no = version
        for actor in (*self.actors.values(), *self.action_scorers.values()):
            actor.weights_seq_no = version
        for module_id in self.engines:
            self._announce(module_id)

    def _announce(self, module_id: str) -> None:
        """Bring an engine to its module's weights."""
        engine, version = self.engines[module_id], self._weights_seq_no
        if engine.shares_weights:
            engine.set_weights_version(version)
            return
        tensors = self.modules[module_id].shared_tensors(inference_only=True)
        engine.update_weights(
            ((name.removeprefix("lm."), tensor) for name, tensor in tensors.items()),
            version,
        )

    def receive_weights(
        self, weights: Mapping[str, dict[str, np.ndarray]], version: int
    ) -> None:
        """Take over new values of some or all parameters of some or all policies.

        Args:
            weights: By ModuleID, each as packed by
                :func:`rllib_llm.weights.pack`; of classic RLModules their state.
            version: The version they make, with all that stays.

        Raises:
            CheckpointError: If a name or shape is not the policy's.
        """
        complete = set(weights) == {*self.modules, *self.actors}
        for module_id, packed in weights.items():
            if module_id in self.actors:
                self.module[module_id].set_state(packed)
                continue
            module, tensors = self.modules[module_id], unpack(packed)
            own = module.shared_tensors(inference_only=True)
            targets = {name: tensor for name, tensor in own.items() if name in tensors}
            copy_into(targets, tensors, f"policy {module_id}")
            complete &= len(targets) == len(own)
        self.has_all_weights |= complete
        self.set_weights_version(version)

    @override(Checkpointable)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> StateDict:
        state: StateDict = {
            NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime,
            "tasks": self._tasks.get_state(),
        }
        if self._check_component(COMPONENT_RL_MODULE, components, not_components):
            state[COMPONENT_RL_MODULE] = self.module.get_state(inference_only=True)
            state[WEIGHTS_SEQ_NO] = self._weights_seq_no
        for name, pipeline in self._connectors():
            if self._check_component(name, components, not_components):
                state[name] = pipeline.get_state()
        return state

    @override(Checkpointable)
    def set_state(self, state: StateDict) -> None:
        for name, pipeline in self._connectors():
            if name in state:
                pipeline.set_state(state[name])
        if COMPONENT_RL_MODULE in state:
            version = state.get(WEIGHTS_SEQ_NO, 0)
            if version == 0 or self._weights_seq_no < version:
                weights = state[COMPONENT_RL_MODULE]
                if isinstance(weights, ray.ObjectRef):
                    weights = ray.get(weights)
                if not self.config.is_multi_agent:
                    weights = weights.get(DEFAULT_MODULE_ID, weights)
                self.module.set_state(weights)
                self.has_all_weights = True
                self.set_weights_version(max(version, self._weights_seq_no))
        if "tasks" in state:
            self._tasks.set_state(state["tasks"])
        self.num_env_steps_sampled_lifetime = state.get(
            NUM_ENV_STEPS_SAMPLED_LIFETIME, self.num_env_steps_sampled_lifetime
        )

    def _connectors(self) -> list[tuple[str, Any]]:
        return [
            (COMPONENT_ENV_TO_MODULE_CONNECTOR, self._env_to_module),
            (COMPONENT_MODULE_TO_ENV_CONNECTOR, self._module_to_env),
        ]

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"config": self.config}

    @override(Checkpointable)
    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        return [(COMPONENT_RL_MODULE, self.module), *self._connectors()]

    @override(EnvRunner)
    def stop(self) -> None:
        """Close the environments."""
        self.make_env()


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
