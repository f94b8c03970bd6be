"""GRPO's Learner: the clipped policy loss with one denominator per minibatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import count
from rllib_llm.losses.aggregation import weighted_loss
from rllib_llm.losses.surrogate import clipped_policy_loss

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig


class GRPOTorchLearner(LLMLearnerMixin, PPOTorchLearner):
    """Clipped or configured policy loss, reference KL, entropy bonus; no critic.

    ``loss = sum(weights * per_token_loss) / denominator``: weights and denominator come
    from ``loss_agg_mode`` (rllib_llm.losses.aggregation).
    """

    @override(PPOTorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: GRPOConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        trained = count(batch)
        scores = fwd_out[Columns.ACTION_DIST_INPUTS]  # [B, T, 2]
        logp, entropy = scores[..., 0], scores[..., 1]
        loss, clipped = self.policy_loss(module_id, config, batch, scores)
        # Means are weighted by their tokens: micro-batches have different sizes.
        for key, value in ((POLICY_LOSS_KEY, loss), (ENTROPY_KEY, entropy)):
            self._add_stat(module_id, key, value.sum() / trained, trained)
        if columns.REF_LOGP in batch:
            loss = loss + self._ref_kl_loss(module_id, config, batch, logp)
        coeff = self.entropy_coeff_schedulers_per_module[module_id].get_current_value()
        loss = loss - coeff * entropy
        if self._composed_loss[module_id].terms:
            choice_logps = fwd_out.get(columns.CHOICE_LOGPS)
            tokens = self.token_batch(module_id, batch, scores, choice_logps)
            loss = loss + self._add_terms(module_id, tokens, trained)
        self._add_token_stats(module_id, logp, batch, clipped)
        # The denominator is that of the whole minibatch, so gradients of micro-batches
        # add up to its gradient.
        return weighted_loss(loss, batch[columns.LOSS_WEIGHTS], batch[DENOMINATOR])

    def policy_loss(
        self,
        module_id: str,
        config: GRPOConfig,
        batch: dict[str, Any],
        scores: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the policy loss per token and where a bound acted. [B, T] each"""
        components = self._composed_loss[module_id]
        if components.loss is not None:
            return components.policy_loss(self.token_batch(module_id, batch, scores))
        return clipped_policy_loss(
            scores[..., 0],
            batch[Columns.ACTION_LOGP],
            batch[Columns.ADVANTAGES],
            batch[Columns.LOSS_MASK],
            clip_low=config.clip_param,
            # None means symmetric; 0 is refused by the config.
            clip_high=config.clip_param_high or config.clip_param,
            dual_clip=config.dual_clip,
        )
