"""Weights and state of an LLMEnvRunner: sharing, receiving, checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.rllib.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, WEIGHTS_SEQ_NO
from ray.rllib.utils.typing import StateDict

from rllib_llm.engines.base import GenerationEngine
from rllib_llm.env_runner.non_llm_policies import NonLLMActor, share_tensors
from rllib_llm.env_runner.scored_actions import ActionScorer
from rllib_llm.remote_calls import result_of
from rllib_llm.weights import copy_into, unpack

if TYPE_CHECKING:
    from rllib_llm.env_runner.task_groups import TaskSource


class RunnerState(EnvRunner, Checkpointable):
    """Base of LLMEnvRunner: its policies' weights, their version, and its state.

    Attributes:
        modules: The language-model policies, by ModuleID.
        engines: Their generation engines, by ModuleID.
        actors: NonLLMActors of RLModules without a language model, by ModuleID.
        action_scorers: ActionScorers of policies with ``head="score"``, by ModuleID.
        has_all_weights: Whether the Learner's weights have arrived in full once; from
            then on the weights that training changes are enough.
    """

    module: Any
    modules: dict[str, Any]
    engines: dict[str, GenerationEngine]
    actors: dict[str, NonLLMActor]
    action_scorers: dict[str, ActionScorer]
    has_all_weights: bool
    num_env_steps_sampled_lifetime: int
    _tasks: TaskSource
    _weights_seq_no: int
    _env_to_module: Any
    _module_to_env: Any

    def share_weights_of(self, modules: Mapping[str, Any]) -> None:
        """Sample with the parameters of ``modules`` themselves (same process only)."""
        for module_id, module in self.modules.items():
            module.share_parameters_with(modules[module_id])
        for module_id, actor in self.actors.items():
            share_tensors(actor.module, modules[module_id])
        self.set_weights_version(self._weights_seq_no)

    def set_weights_version(self, version: int) -> None:
        """Set the version of the weights and update the engines to it.

        Engines then drop their cached keys and values, which are stale.
        """
        self._weights_seq_no = version
        for actor in self.actors.values():
            actor.weights_seq_no = version
        for scorer in self.action_scorers.values():
            scorer.weights_seq_no = version
        for module_id in self.engines:
            self._announce(module_id)

    def _announce(self, module_id: str) -> None:
        """Update an engine to the current weights of its module."""
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
        """Set some or all parameters of some or all policies.

        Args:
            weights: By ModuleID: the output of :func:`rllib_llm.weights.pack` for a
                language model, the module state for another RLModule.
            version: Version of the resulting weights.

        Raises:
            CheckpointError: If a policy has no parameter of that name or shape.
        """
        complete = set(weights) == {*self.modules, *self.actors}
        for module_id, packed in weights.items():
            if module_id in self.actors:
                self.module[module_id].set_state(packed)
                continue
            module, tensors = self.modules[module_id], unpack(packed)
            current = module.shared_tensors(inference_only=True)
            targets = {n: tensor for n, tensor in current.items() if n in tensors}
            copy_into(targets, tensors, f"policy {module_id}")
            complete &= len(targets) == len(current)
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
            # RLlib may deliver an old state late: ignore what is not newer. Version 0
            # means a state without a version, e.g. from a checkpoint.
            if version == 0 or self._weights_seq_no < version:
                weights = state[COMPONENT_RL_MODULE]
                if isinstance(weights, ray.ObjectRef):
                    weights = result_of(
                        weights,
                        f"Weights version {version} for EnvRunner {self.worker_index}",
                        self.config.call_limit,
                    )
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
