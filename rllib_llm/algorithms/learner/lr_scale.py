"""Learning rates that can be lowered during a run, schedules included."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllib_llm.rllib_bases import RLlibLearner


class ScaledLearningRates(RLlibLearner):
    """Mixin that multiplies scheduled learning rates by a factor per module.

    Attributes:
        lr_scales: Factor by ModuleID; 1 for other modules.
    """

    lr_scales: Mapping[str, float] = {}
    _min_lr = 0.0

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
