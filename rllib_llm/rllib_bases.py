"""RLlib's classes as the package's mixins see them.

A mixin precedes RLlib's class in the bases of the class that is used. It inherits one
of these classes, which declare what it reads, sets or extends of RLlib's. They are
empty at run time, so that RLlib's own attributes and methods are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from ray.rllib.callbacks.callbacks import RLlibCallback
    from ray.rllib.connectors.learner import LearnerConnectorPipeline
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.core.learner.training_data import TrainingData
    from ray.rllib.core.rl_module.multi_rl_module import (
        MultiRLModule,
        MultiRLModuleSpec,
    )
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.policy.sample_batch import MultiAgentBatch
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
    from ray.rllib.utils.schedules.scheduler import Scheduler

    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.types import LLMConfig


class RLlibConfig:
    """The part of AlgorithmConfig that this package reads, sets or extends."""

    if TYPE_CHECKING:
        algo_class: type[Any]
        env: Any  # a registered name, a class or a function
        env_config: dict[str, Any]
        env_runner_cls: type[Any]  # set by validate()
        env_task_fn: Callable[..., Any] | None
        environment: Callable[..., Self]
        rl_module: Callable[..., Self]
        debugging: Callable[..., Self]
        reporting: Callable[..., Self]
        explore: bool
        seed: int | None
        num_env_runners: int
        num_envs_per_env_runner: int
        num_cpus_per_env_runner: float
        num_gpus_per_env_runner: float
        num_learners: int
        num_cpus_per_learner: float | str
        num_gpus_per_learner: float
        num_cpus_for_main_process: int
        num_gpus: float
        create_local_env_runner: bool
        create_env_on_local_worker: bool
        placement_strategy: str
        batch_mode: str
        rollout_fragment_length: int | str
        sample_timeout_s: float | None
        normalize_actions: bool
        clip_actions: bool
        episodes_to_numpy: bool
        observation_filter: str
        add_default_connectors_to_learner_pipeline: bool
        _env_to_module_connector: Callable[..., Any] | None
        _module_to_env_connector: Callable[..., Any] | None
        _learner_connector: Callable[..., Any] | None
        gamma: float
        lr: float | list[Any]
        use_critic: bool  # PPO's, as lambda_
        lambda_: float
        grad_clip: float | None
        grad_clip_by: str
        train_batch_size_per_learner: int | None
        torch_skip_nan_gradients: bool
        torch_compile_learner: bool
        learner_class: type[Any]
        algorithm_config_overrides_per_module: dict[str, Any]
        is_multi_agent: bool
        _per_module_overrides: dict[str, Any]
        model_config: dict[str, Any]
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec
        _rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None
        callbacks_class: type[RLlibCallback] | list[type[RLlibCallback]]
        evaluation_interval: int | None
        evaluation_duration: int | str
        evaluation_duration_unit: str
        evaluation_sample_timeout_s: float | None
        evaluation_num_env_runners: int
        evaluation_config: Any
        in_evaluation: bool
        restart_failed_env_runners: bool
        broadcast_env_runner_states: bool
        merge_env_runner_states: bool | str
        delay_between_env_runner_restarts_s: float
        env_runner_health_probe_timeout_s: float
        stats_cls_lookup: dict[str, type[Any]]

        def copy(self, copy_frozen: bool | None = None) -> Self: ...
        def freeze(self) -> None: ...
        def keys(self) -> Iterable[str]: ...
        def to_dict(self) -> dict[str, Any]: ...
        def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self: ...
        def get_config_for_module(self, module_id: str) -> Self: ...
        def get_default_learner_class(self) -> type[Any]: ...
        def build_algo(self, **kwargs: Any) -> Any: ...
        def validate(self) -> None: ...
        def api_stack(self, **kwargs: Any) -> Self: ...
        def multi_agent(self, **kwargs: Any) -> Self: ...
        def get_multi_rl_module_spec(self, **kwargs: Any) -> MultiRLModuleSpec: ...
        def get_rl_module_spec(self, **kwargs: Any) -> RLModuleSpec: ...


class RLlibAlgorithm:
    """The part of Algorithm that this package reads, sets or extends."""

    if TYPE_CHECKING:
        config: LLMConfig
        iteration: int
        logdir: str
        metrics: MetricsLogger
        env_runner: LLMEnvRunner | None
        env_runner_group: EnvRunnerGroup
        eval_env_runner_group: EnvRunnerGroup | None
        learner_group: LearnerGroup

        training_iteration: int

        def setup(self, config: LLMConfig) -> None: ...
        def step(self) -> dict[str, Any]: ...
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
        def restore_env_runners(self, group: EnvRunnerGroup) -> list[int]: ...
        def save_checkpoint(self, *args: Any, **kwargs: Any) -> str: ...
        def log_result(self, result: dict[str, Any]) -> None: ...
        def cleanup(self) -> None: ...
        def get_checkpointable_components(self) -> list[tuple[str, Any]]: ...
        def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
        def set_state(self, state: dict[str, Any]) -> None: ...
        def save_to_path(self, *args: Any, **kwargs: Any) -> str: ...
        def restore_from_path(
            self, path: str | Path, *args: Any, **kwargs: Any
        ) -> None: ...
        @classmethod
        def from_checkpoint(
            cls, path: str | Path, *args: Any, **kwargs: Any
        ) -> Any: ...
        def _check_component(self, name: str, *args: Any) -> bool: ...


class RLlibLearner:
    """The part of TorchLearner that this package reads, sets or extends."""

    if TYPE_CHECKING:
        config: LLMConfig
        module: MultiRLModule
        metrics: MetricsLogger
        curr_kl_coeffs_per_module: Mapping[str, torch.Tensor]
        entropy_coeff_schedulers_per_module: Mapping[str, Scheduler]
        device: torch.device
        _module: MultiRLModule
        _device: torch.device | str
        _weights_seq_no: int
        _learner_connector: LearnerConnectorPipeline
        _params: dict[Any, torch.nn.Parameter]
        _optimizer_parameters: dict[torch.optim.Optimizer, list[Any]]
        _named_optimizers: dict[str, torch.optim.Optimizer]
        _module_optimizers: dict[str, list[str]]
        _optimizer_lr_schedules: dict[torch.optim.Optimizer, Scheduler]
        _optimizer_name_to_module: dict[str, str]

        def build(self) -> None: ...
        def update(self, *args: Any, **kwargs: Any) -> Any: ...
        def should_module_be_updated(
            self, module_id: str, multi_agent_batch: MultiAgentBatch | None = None
        ) -> bool: ...
        def register_optimizer(self, **kwargs: Any) -> None: ...
        def get_optimizers_for_module(
            self, module_id: str
        ) -> Iterable[tuple[str, torch.optim.Optimizer]]: ...
        def compute_loss_for_module(
            self,
            *,
            module_id: str,
            config: Any,  # of the algorithm, which each Learner names
            batch: dict[str, Any],
            fwd_out: dict[str, torch.Tensor],
        ) -> torch.Tensor: ...
        def postprocess_gradients(
            self, gradients_dict: dict[Any, torch.Tensor]
        ) -> dict[Any, torch.Tensor]: ...
        def apply_gradients(self, gradients_dict: dict[Any, torch.Tensor]) -> None: ...
        def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None: ...
        def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...
        def set_state(self, state: dict[str, Any]) -> None: ...
        def _make_batch_if_necessary(
            self, *, training_data: TrainingData
        ) -> MultiAgentBatch: ...
        def _make_module(self) -> MultiRLModule: ...
        def _set_optimizer_lr(
            self, optimizer: torch.optim.Optimizer, lr: float
        ) -> None: ...
        def _set_optimizer_state(self, state: dict[str, Any]) -> None: ...
        def _log_metrics(self, batch: MultiAgentBatch) -> None: ...
        def _map_module_to_device(self, module: MultiRLModule) -> None: ...
        def _get_clip_function(self) -> Callable[..., Any]: ...
        def _get_global_norm_function(self) -> Callable[..., Any]: ...
        def _get_optimizer_state(self) -> dict[str, Any]: ...
