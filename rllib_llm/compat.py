"""Private or fragile touch points with other libraries.

Each private call is wrapped in one function. ``RLLIB_TOUCH_POINTS`` lists the private
names of RLlib's classes that this package overrides or reads. ``tests/test_compat.py``
checks all of them, so that an incompatible upgrade fails there with the name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.tune import Tuner
    from ray.tune.experiment import Trial
    from ray.tune.tune_config import ResumeConfig
    from torch import Tensor, nn

# By class: names that this package overrides, calls or reads and that are not public.
RLLIB_TOUCH_POINTS: dict[str, tuple[str, ...]] = {
    "ray.rllib.algorithms.algorithm.Algorithm": ("_get_env_id_and_creator",),
    "ray.rllib.algorithms.algorithm_config.AlgorithmConfig": (
        "_dont_auto_sync_env_runner_states",
        "_env_to_module_connector",
        "_module_to_env_connector",
        "_learner_connector",
        "validate_train_batch_size_vs_rollout_fragment_length",
    ),
    "ray.rllib.core.learner.learner.Learner": (
        "_create_iterator_if_necessary",
        "_make_batch_if_necessary",
        "_learner_connector",
        "_make_module",
        "_module",
        "_module_optimizers",
        "_named_optimizers",
        "_optimizer_lr_schedules",
        "_optimizer_name_to_module",
        "_optimizer_parameters",
        "_params",
        "_set_optimizer_lr",
        "_set_optimizer_state",
        "_weights_seq_no",
    ),
    "ray.rllib.core.learner.torch.torch_learner.TorchLearner": (
        "_device",
        "_make_module",
        "_get_clip_function",
        "_get_global_norm_function",
        "_get_optimizer_state",
        "_make_modules_ddp_if_necessary",
        "_map_module_to_device",
        "_set_optimizer_state",
        "_uncompiled_update",
    ),
    "ray.rllib.algorithms.ppo.ppo_learner.PPOLearner": (
        "curr_kl_coeffs_per_module",
        "entropy_coeff_schedulers_per_module",
    ),
    "ray.rllib.core.learner.learner_group.LearnerGroup": (
        "_learner",
        "_worker_manager",
        "_workers",
    ),
    "ray.rllib.env.env_runner_group.EnvRunnerGroup": ("_worker_manager",),
    "ray.rllib.core.rl_module.torch.torch_rl_module.TorchRLModule": (
        "_forward",
        "_forward_train",
    ),
    "ray.tune.logger.tensorboardx.TBXLoggerCallback": (
        "_trial_result",
        "_trial_writer",
        "_try_log_hparams",
    ),
    "ray.air.integrations.mlflow.MLflowLoggerCallback": ("_trial_runs", "mlflow_util"),
    "ray.tune.experiment.trial.Trial": ("__unresolved_config",),
    "ray.tune.schedulers.async_hyperband.AsyncHyperBandScheduler": (
        "_metric_op",
        "_trial_info",
    ),
    "ray.tune.schedulers.pbt.PopulationBasedTraining": (
        "_burn_in_period",
        "_metric_op",
        "_next_perturbation_sync",
        "_perturbation_interval",
        "_trial_state",
    ),
}


def lora_layers(model: nn.Module) -> list[Any]:
    """Return all peft tuner layers of ``model`` (empty without peft)."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        return []
    return [m for m in model.modules() if isinstance(m, BaseTunerLayer)]


def set_lora_disabled(layer: nn.Module, disabled: bool) -> None:
    """Disable or enable one adapter without changing ``requires_grad``.

    peft's public ``enable_adapters`` also changes ``requires_grad`` of the adapter,
    which would remove it from an autograd graph under construction.
    """
    layer._disable_adapters = disabled


def is_lora_disabled(layer: nn.Module) -> bool:
    """Return whether :func:`set_lora_disabled` has disabled this adapter."""
    return layer._disable_adapters


def lora_parts(layer: nn.Module) -> tuple[Any, Any, float] | None:
    """Return A [r, in], B [out, r] and the scale of a layer's only plain LoRA adapter.

    None for layers that compute anything else: other adapter types, several or no
    active adapters, DoRA, a bias in the adapter, hooks.
    """
    try:
        from peft.tuners.lora.layer import Linear
    except ImportError:
        return None
    # The exact type: subclasses may compute something else.
    if type(layer) is not Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    names = list(layer.active_adapters)
    if len(names) != 1 or layer._disable_adapters or layer.merged_adapters:
        return None
    (name,) = names
    is_plain = not layer.fan_in_fan_out and type(layer.get_base_layer()) is _linear()
    variants = getattr(layer, "lora_variant", {})
    if not is_plain or name in variants or layer.lora_B[name].bias is not None:
        return None
    a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
    return a, b, float(layer.scaling[name])


def _linear() -> type:
    from torch import nn

    return nn.Linear


@contextlib.contextmanager
def attention_on_cpu(model: nn.Module) -> Iterator[None]:
    """Let a model with flash attention that lies in host memory compute in the block.

    Models are loaded there and checked before they move to a GPU. transformers' public
    ``set_attn_implementation`` refuses flash attention for models on a CPU, so that it
    could not be set again afterwards.
    """
    config: Any = model.config
    chosen = config._attn_implementation
    on_cpu = next(model.parameters()).device.type == "cpu"
    if not on_cpu or "flash" not in (chosen or ""):
        yield
        return
    with attention_replaced(config, chosen, "eager"):
        yield


FLOAT32_ATTENTION = "rllib_llm_float32_sdpa"
"""Name under which ``learner/fast_layers.py`` registers an attention."""


@contextlib.contextmanager
def attention_replaced(config: Any, name: str, other: str) -> Iterator[None]:
    """Use another attention inside of the block, if a config's is ``name``.

    The public ``set_attn_implementation`` needs the model, and loads kernels.
    """
    chosen = config._attn_implementation
    if chosen != name:
        yield
        return
    config._attn_implementation = other
    try:
        yield
    finally:
        config._attn_implementation = chosen


def supports_sdpa(model: nn.Module) -> bool:
    """Return whether a transformers model can attend with torch's sdpa.

    Models whose attention it cannot compute, with sinks for example, say so only in
    this private flag, which ``from_pretrained`` reads.
    """
    return bool(getattr(model, "_supports_sdpa", False))


def conv1d_classes() -> tuple[type, ...]:
    """Return GPT-2's transposed linear layer, which peft treats as linear."""
    from transformers.pytorch_utils import Conv1D

    return (Conv1D,)


def gguf_architectures() -> frozenset[str]:
    """Return the architectures that transformers reads from GGUF files.

    They are spelt with underscores, where files may have none, or hyphens.
    """
    from transformers import modeling_gguf_pytorch_utils as readers

    # The list also has the prefixes of metadata that every architecture has.
    return frozenset(readers.GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"}


def checkpoint_weights(
    model: nn.Module, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights with the names and layouts that ``save_pretrained`` writes.

    Args:
        model: A transformers model; its weights are not read.
        tensors: Weights by parameter name, complete for each layer.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(tensors))


def continue_run(tuner: Tuner, resume: ResumeConfig) -> None:
    """Make ``tuner.fit()`` continue the trials of its run folder.

    ``Tuner.restore`` does so too, but restores pickled callbacks and the old stopping
    condition instead of using the tuner's.

    Args:
        tuner: A ``ray.tune.Tuner`` with the name and storage of the run.
        resume: A ``ray.tune.tune_config.ResumeConfig``.
    """
    tuner._local_tuner._resume_config = resume
    tuner._local_tuner._is_restored = True


def change_trial_config(trial: Trial, values: dict[str, Any]) -> None:
    """Change a Tune trial's config, also for a resumed run.

    ``Trial.set_config``, which PBT uses, does not change the unresolved copy, from
    which a resumed run builds the config.

    Args:
        trial: A ``ray.tune.experiment.trial.Trial``.
        values: New values by the config's keys.
    """
    trial.set_config({**trial.config, **values})
    trial._Trial__unresolved_config.update(values)
    trial.invalidate_json_state()


def set_only_checkpoint(
    trial: Trial, checkpoint: Path, metrics: dict[str, Any]
) -> None:
    """Make a Tune trial continue from ``checkpoint`` and drop its other checkpoints.

    Args:
        trial: A ``ray.tune.experiment.trial.Trial``.
        checkpoint: A folder that Tune wrote, ``checkpoint_<number>``.
        metrics: The result reported with the checkpoint.
    """
    from ray.train._internal.checkpoint_manager import _CheckpointManager
    from ray.train._internal.session import _TrainingResult
    from ray.tune import Checkpoint

    manager = _CheckpointManager(
        trial.run_metadata.checkpoint_manager.checkpoint_config
    )
    manager.register_checkpoint(_TrainingResult(Checkpoint(str(checkpoint)), metrics))
    trial.run_metadata.checkpoint_manager = manager
    trial.storage.current_checkpoint_index = int(checkpoint.name.rpartition("_")[2])
    trial.invalidate_json_state()
    trial.run_metadata.invalidate_cache()


def limit_collectives(seconds: float) -> None:
    """Set the time limit of collective calls in the group of all Learners.

    Ray starts the group with 30 minutes; there is no public call to change it.
    """
    from datetime import timedelta

    from torch.distributed import distributed_c10d

    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))


def restart_env_runner(group: EnvRunnerGroup, runner: int) -> None:
    """End the process of a remote EnvRunner, which Ray restarts if RLlib lets it.

    It gets no calls until RLlib has restored it. There is no public way to end one
    EnvRunner of a group.

    Args:
        group: The EnvRunners.
        runner: The EnvRunner's id in the group.
    """
    import ray

    manager = group._worker_manager
    ray.kill(manager.actors()[runner], no_restart=False)
    manager.set_actor_state(runner, healthy=False)


def ray_kv_put(key: str, value: str) -> None:
    """Write into the key-value store of Ray's control service."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=True)


def ray_kv_get(key: str) -> str | None:
    """Return the value of a key in that store; None if the key does not exist."""
    from ray.experimental import internal_kv

    value = internal_kv._internal_kv_get(key)
    return None if value is None else value.decode()


def ray_kv_keys(prefix: str) -> list[str]:
    """Return the store's keys that start with ``prefix``; empty if Ray does not run."""
    from ray.experimental import internal_kv

    if not internal_kv._internal_kv_initialized():
        return []
    return [key.decode() for key in internal_kv._internal_kv_list(prefix)]


def ray_kv_delete(prefix: str) -> None:
    """Delete the store's keys that start with ``prefix``, if Ray runs."""
    from ray.experimental import internal_kv

    if internal_kv._internal_kv_initialized():
        internal_kv._internal_kv_del(prefix, del_by_prefix=True)
