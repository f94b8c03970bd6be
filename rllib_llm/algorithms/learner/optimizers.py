"""Optimisers of a Learner: one per policy and critic, their steps and rates."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.adamw import MixedPrecisionAdamW
from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.distributed import sum_of_squares
from rllib_llm.errors import RLlibLLMError

if TYPE_CHECKING:
    from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings
    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

POLICY_OPTIMIZER = "policy"
SCORER_OPTIMIZER = "scorer"
CRITIC_OPTIMIZER = "critic"


class OptimizerMixin(LearnerStats):
    """Mixin that registers and steps optimisers, and lowers their learning rates.

    Attributes:
        lr_scales: Factor on scheduled learning rates by ModuleID; 1 for other modules.
    """

    _non_llm_ids: frozenset[str]
    _scorer_id: str | None
    lr_scales: Mapping[str, float] = {}
    _min_lr = 0.0

    @override(Learner)
    def configure_optimizers_for_module(
        self, module_id: str, config: LLMConfig
    ) -> None:
        """Register optimisers of the language model and the critic, or a scorer."""
        module = self._module[module_id].unwrapped()
        groups: dict[str, list[torch.nn.Parameter]] = defaultdict(list)
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                group = POLICY_OPTIMIZER
                if module_id == self._scorer_id:
                    group = SCORER_OPTIMIZER
                elif self._is_critic(module_id) or name.startswith("value_head."):
                    group = CRITIC_OPTIMIZER
                groups[group].append(parameter)
        for name, parameters in groups.items():
            lr = config.lr
            if name == CRITIC_OPTIMIZER and config.critic_lr is not None:
                # Separate optimisers, because critic and policy have separate learning
                # rates and the warm-up steps only one of them.
                lr = config.critic_lr
            elif name == SCORER_OPTIMIZER:
                lr = cast("ScorerSettings", config).scorer_lr
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=MixedPrecisionAdamW(
                    parameters,
                    weight_decay=config.weight_decay,
                    offload=config.optimizer_offload,
                ),
                params=parameters,
                lr_or_lr_schedule=lr,
            )

    @override(TorchLearner)
    def apply_gradients(self, gradients_dict: dict[Any, torch.Tensor]) -> None:
        """Step the optimisers; during critic warm-up only the critics'."""
        if self._weights_seq_no <= self.config.critic_warmup_iters:
            critic = {
                ref
                for mid in self.module.keys()
                for name, optimizer in self.get_optimizers_for_module(mid)
                if name.endswith((CRITIC_OPTIMIZER, SCORER_OPTIMIZER))
                or mid in self._non_llm_ids
                for ref in self._optimizer_parameters[optimizer]
            }
            for ref, parameter in self._params.items():
                if ref not in critic:
                    parameter.grad = None
            gradients_dict = {r: g for r, g in gradients_dict.items() if r in critic}
        super().apply_gradients(gradients_dict)

    @override(TorchLearner)
    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load the optimisers' states from host memory, tensor by tensor."""
        # RLlib copies a whole state to this device first, which then holds it twice.
        device, self._device = self._device, torch.device("cpu")
        try:
            super()._set_optimizer_state(state)
        finally:
            self._device = device

    def _all_finite(self) -> bool:
        """Return whether all gradients are finite; otherwise apply ``nan_policy``."""
        # Gradients are already summed over Learners, so all ranks see the same.
        total = torch.zeros((), device=self._device)
        for module_id in self.module.keys():
            parameters = self.module[module_id].unwrapped().parameters()
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                square = sum_of_squares(gradients)
                # Before clipping, so that the metric shows spikes.
                self._add_stat(module_id, "grad_norm", square.sqrt(), 1.0)
                total = total + square
        norm = total.sqrt()
        if bool(torch.isfinite(norm)):
            return True
        self._nan_steps += 1
        message = (
            f"Non-finite gradient (norm {float(norm)}) in update "
            f"{self._weights_seq_no}. Lower lr or grad_clip, or look for extreme "
            "rewards in the transcripts."
        )
        if self.config.nan_policy == "error":
            raise RLlibLLMError(message)
        logger.warning("%s The step is skipped (nan_policy='skip').", message)
        return False

    def _parameters_of(self, module_id: str) -> list[torch.nn.Parameter]:
        return [
            self._params[ref]
            for _, optimizer in self.get_optimizers_for_module(module_id)
            for ref in self._optimizer_parameters[optimizer]
        ]

    # Learning rates ------------------------------------------------------------------

    @override(TorchLearner)
    def _set_optimizer_lr(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
        """Set the scheduled rate times the factor, at least ``min_lr`` or the rate."""
        # RLlib calls this method for every step of a schedule, so the factor survives
        # schedules.
        scale = self.lr_scales.get(self._owner_of(optimizer) or "", 1.0)
        # A scheduled rate below min_lr is not raised.
        least = min(lr, self._min_lr)
        super()._set_optimizer_lr(optimizer, lr=max(lr * scale, least))

    def _owner_of(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Return the ModuleID of an optimiser."""
        for module_id, names in self._module_optimizers.items():
            if any(self._named_optimizers[name] is optimizer for name in names):
                return module_id
        return None

    def lower_lr(self, module_id: str | None, factor: float, min_lr: float) -> None:
        """Multiply the rates of a module's optimisers, from now on.

        Args:
            module_id: The module; None: all of them.
            factor: Between 0 and 1.
            min_lr: No rate is lowered below it.
        """
        module_ids = list(self.module.keys()) if module_id is None else [module_id]
        self._min_lr = min_lr
        self.set_lr_scales(
            {
                **self.lr_scales,
                **{m: self.lr_scales.get(m, 1.0) * factor for m in module_ids},
            }
        )

    def set_lr_scales(self, scales: Mapping[str, float]) -> None:
        """Apply the factors now, and in all later updates."""
        self.lr_scales = dict(scales)
        for optimizer, schedule in self._optimizer_lr_schedules.items():
            # Now: RLlib sets rates only after the next update.
            self._set_optimizer_lr(optimizer, lr=schedule.get_current_value())
