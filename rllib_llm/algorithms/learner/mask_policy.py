"""Renewal of mask policies, earlier copies of policies that restrict their tokens."""

from __future__ import annotations

from typing import Any

from rllib_llm.algorithms.learner.learner_stats import LearnerStats


class MaskPolicyMixin(LearnerStats):
    """Mixin that renews each mask policy every ``mask_update_iters`` updates."""

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Copy the policy's weights to its mask policy if it is time."""
        for module_id in self.config.llm_module_ids:
            settings = self.config.get_config_for_module(module_id)
            # The number of updates survives a resumed run.
            if self._weights_seq_no % settings.mask_update_iters == 0:
                self.module[module_id].unwrapped().refresh_mask_policy()
        super().after_gradient_based_update(timesteps=timesteps)
