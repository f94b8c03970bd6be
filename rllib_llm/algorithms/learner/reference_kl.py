"""KL penalty of a policy to its frozen reference, in the Learner."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.distributed import all_reduce_sum
from rllib_llm.losses.kl import kl_penalty


class ReferenceKLMixin:
    """Mixin that computes the KL to the reference and adapts its coefficient."""

    def build(self) -> None:
        """Build the Learner and set the coefficients."""
        super().build()  # type: ignore[misc]
        self._ref_kl_coeffs = {
            module_id: self.config.get_config_for_module(module_id).ref_kl_coeff
            for module_id in self.module.keys()
        }

    def _ref_kl_loss(
        self, module_id: str, config: Any, batch: dict[str, Any], logp: torch.Tensor
    ) -> torch.Tensor | float:
        """Return the reference KL's part of the loss, and log it.

        Args:
            module_id: Policy of the loss.
            config: That policy's config.
            batch: The micro-batch.
            logp: Log-probabilities under the policy being trained. [B, T]

        Returns:
            Loss per token [B, T]; 0.0 if there is no reference, or the KL is part of
            the rewards.
        """
        if columns.REF_LOGP not in batch:
            return 0.0
        mask, largest = batch[Columns.LOSS_MASK], config.ref_kl_clip
        trained = int(mask.sum())
        kl = kl_penalty(
            logp,
            batch[columns.REF_LOGP],
            mask,
            config.ref_kl_estimator,
            largest=largest,
        )
        self._add_stat(module_id, "ref_kl", kl.sum() / trained, trained)
        if config.ref_kl_estimator == "k3" and largest is not None:
            share = (kl.detach() >= largest).sum() / trained
            self._add_stat(module_id, "ref_kl_clip_frac", share, trained)
        if config.ref_kl_in == "reward":
            return 0.0
        return self._ref_kl_coeffs[module_id] * kl

    def _adapt_ref_kl(self, module_id: str) -> None:
        """Adapt the reference-KL coefficient towards ``ref_kl_target``, as RLlib does.

        The rule is that of PPO's adaptive KL coefficient: x1.5 above twice the target,
        x0.5 below half of it. The KL is over all Learners' tokens, so that their
        coefficients stay equal.
        """
        target = self.config.get_config_for_module(module_id).ref_kl_target
        if target is not None:
            stats = self._stats[module_id]
            local_sums = [float(stats[key]) for key in ("ref_kl", "ref_kl/weight")]
            kl, weight = all_reduce_sum(local_sums, self._device)
            if kl > 2.0 * target * weight:
                self._ref_kl_coeffs[module_id] *= 1.5
            elif kl < 0.5 * target * weight:
                self._ref_kl_coeffs[module_id] *= 0.5
        self._publish_ref_kl()
        self._add_stat(module_id, "ref_kl_coeff", self._ref_kl_coeffs[module_id], 1.0)

    def _publish_ref_kl(self) -> None:
        for component in getattr(self._learner_connector, "connectors", []):
            for module_id, settings in getattr(component, "settings", {}).items():
                if getattr(settings, "ref_kl_coeff", None) is not None:
                    settings.ref_kl_coeff = self._ref_kl_coeffs[module_id]
