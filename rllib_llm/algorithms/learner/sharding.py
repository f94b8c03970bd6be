"""Learners that each hold a part of every parameter (FSDP2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.utils.annotations import override
from ray.rllib.utils.numpy import convert_to_numpy

from rllib_llm.algorithms.learner.fast_layers import (
    speed_up_linear_layers,
    speed_up_norms,
)
from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import idle_rows
from rllib_llm.distributed import gathered, is_first, local, shard_like, sum_of_squares
from rllib_llm.modules.last_mlp import limit_last_mlp
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.packing_check import check_packing
from rllib_llm.modules.sharding import reshard, shard
from rllib_llm.pictures.features import vision_parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from rllib_llm.types import LLMConfig


class ShardingMixin(LearnerStats):
    """Mixin that shards modules, and whatever works on whole parameters otherwise.

    The state of a sharded Learner is the same as that of a whole one: :meth:`get_state`
    gathers it, on the first Learner, and must be called on all of them.

    Attributes:
        is_sharded: Whether this Learner holds shards.
        leaves_out_moments: Whether :meth:`get_state` leaves out the tensors of the
            optimisers, which are saved apart.
    """

    is_sharded = False
    leaves_out_moments = False

    @override(TorchLearner)
    def _make_module(self) -> MultiRLModule:
        """Return the modules, with fast layers on CPUs, and sharded.

        RLlib collects the optimisers' parameters right after this.
        """
        module = super()._make_module()
        device = torch.device(self._device)
        for module_id in self.config.llm_module_ids:
            part = module[module_id].unwrapped()
            if self.config.lm_compile:
                continue  # its graphs would break at the replaced layers
            # Before they are sharded: norms and MLPs are probed.
            speed_up_norms(part, device)
            if isinstance(part, LLMRLModule):
                limit_last_mlp(part, device)
            if self.config.matmul_precision == "auto":
                speed_up_linear_layers(part, device)
        if self.is_sharded:
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(device.type, (dist.get_world_size(),))
            settings = self.config.complete_sharding_kwargs()
            for part in language_models(module).values():
                shard(part, mesh, settings)
        return module

    @override(TorchLearner)
    def _map_module_to_device(self, module: MultiRLModule) -> None:
        """Leave modules that will be sharded in host memory, from which layers move."""
        if not self.is_sharded:
            super()._map_module_to_device(module)

    def _check_packing(self) -> None:
        """Check that packed rows are kept apart, with the layers of this device."""
        for module in language_models(self.module).values():
            check_packing(module)
        if self.is_sharded:
            self.reshard()

    def reshard(self) -> None:
        """Drop gathered parameters."""
        for module in language_models(self.module).values():
            reshard(module)

    def _idle_loss(self, module_id: str, config: LLMConfig) -> torch.Tensor:
        """Return a loss of zero, of the same passes as a micro-batch's."""
        module, rows = self.module[module_id].unwrapped(), idle_rows(self._device)
        out = module.forward_train(rows)
        if columns.VALUES in out:  # a critic that policies share
            return (out[columns.VALUES] * 0.0).sum()
        loss = (out[Columns.ACTION_DIST_INPUTS] * 0.0).sum()
        if config.use_critic and hasattr(module, "value_head"):
            hidden = out[Columns.EMBEDDINGS]
            loss = loss + (module.compute_values(rows, embeddings=hidden) * 0.0).sum()
        return loss

    def _drop_vision_gradients(self, module_id: str) -> None:
        """Drop gradients of vision parts after a step in which no row had a picture.

        They are zeros of blank pictures, and momentum would move the weights.
        """
        module = self.module[module_id].unwrapped()
        trunk = getattr(getattr(module, "value_head", None), "trunk", None)
        for model in (module.lm, trunk):
            for parameter in vision_parameters(model) if model is not None else ():
                parameter.grad = None

    # Clipping ------------------------------------------------------------------------

    @override(TorchLearner)
    def _get_clip_function(self) -> Callable[..., Any]:
        return clip_shards if self.is_sharded else super()._get_clip_function()

    @override(TorchLearner)
    def _get_global_norm_function(self) -> Callable[..., Any]:
        return global_norm if self.is_sharded else super()._get_global_norm_function()

    # Optimisers' state ---------------------------------------------------------------

    @override(TorchLearner)
    def _get_optimizer_state(self) -> dict[str, Any]:
        """Return RLlib's state, gathered tensor by tensor."""
        if not self.is_sharded:
            return super()._get_optimizer_state()
        states = {}
        for name, optimizer in self._named_optimizers.items():
            state = optimizer.state_dict()
            if self.leaves_out_moments:
                state["state"] = {}
            state["state"] = {
                index: {k: _to_numpy(v) for k, v in of_parameter.items()}
                for index, of_parameter in state["state"].items()
            }
            state["param_groups"] = convert_to_numpy(state["param_groups"])
            states[name] = {
                "module_id": self._optimizer_name_to_module[name],
                "state": state,
            }
        return states if is_first() else {}

    @override(TorchLearner)
    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load RLlib's state, of which each Learner keeps its part."""
        if not self.is_sharded:
            super()._set_optimizer_state(state)
            return
        for name, saved in state.items():
            optimizer = self._named_optimizers[name]
            parameters = [
                p for group in optimizer.param_groups for p in group["params"]
            ]
            whole = saved["state"]["state"]
            parts = {
                index: {k: _part_of(v, parameters[index]) for k, v in values.items()}
                for index, values in whole.items()
            }
            optimizer.load_state_dict({**saved["state"], "state": parts})


def language_models(modules: MultiRLModule) -> dict[str, LLMRLModule]:
    """Return the modules that are sharded, by ModuleID, in one order on all ranks."""
    parts = {module_id: modules[module_id].unwrapped() for module_id in modules.keys()}
    return {m: parts[m] for m in sorted(parts) if isinstance(parts[m], LLMRLModule)}


def global_norm(gradients: list[torch.Tensor | None]) -> torch.Tensor:
    """Return the norm of all gradients, over the shards of all Learners."""
    given = [g for g in gradients if g is not None]
    return sum_of_squares(given).sqrt() if given else torch.zeros(())


def clip_shards(
    gradients: dict[Any, torch.Tensor | None],
    *,
    grad_clip: float | None = None,
    grad_clip_by: str = "value",
) -> torch.Tensor | None:
    """Clip gradients in place as RLlib's ``clip_gradients``, over shards.

    Returns:
        The norm of all gradients before, if ``grad_clip_by`` is ``"global_norm"``.
    """
    given = [g for g in gradients.values() if g is not None]
    if grad_clip is None:
        return None
    if grad_clip_by == "value":
        for gradient in given:
            local(gradient).clamp_(-grad_clip, grad_clip)
        return None
    if grad_clip_by == "norm":
        for gradient in given:
            norm = global_norm([gradient])
            # No branch on the norm, which the host would wait for.
            factor = grad_clip / norm.clamp(min=grad_clip)
            local(gradient).mul_(factor.to(gradient.device))
        return None
    norm = global_norm(given)
    # RLlib's factor.
    factor = (grad_clip / (norm + 1e-6).clamp(min=grad_clip)).clamp(max=1.0)
    for gradient in given:
        local(gradient).mul_(factor.to(gradient.device))
    return norm


def _to_numpy(value: Any) -> Any:
    whole = gathered(value) if isinstance(value, torch.Tensor) else value
    return convert_to_numpy(whole)


def _part_of(value: Any, parameter: torch.Tensor) -> Any:
    if getattr(value, "shape", ()) == tuple(parameter.shape):
        return shard_like(torch.as_tensor(value).to(parameter.device), parameter)
    return torch.as_tensor(value) if hasattr(value, "shape") else value
