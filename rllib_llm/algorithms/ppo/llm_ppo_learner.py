"""LLMPPO's Learner: RLlib's PPO loss, or its parts one by one, over masked tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.algorithms.learner.non_llm_learner import RLLIB_MEANS
from rllib_llm.algorithms.learner.rllib_loss import rllib_ppo_loss
from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import count, read
from rllib_llm.losses.aggregation import weighted_loss
from rllib_llm.losses.policy_losses import ppo_clip
from rllib_llm.losses.surrogate import is_clipped
from rllib_llm.losses.value_losses import critic_loss

if TYPE_CHECKING:
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig

_CRITIC_STATS = (VF_LOSS_KEY, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY)


class LLMPPOTorchLearner(LLMLearnerMixin, PPOTorchLearner):
    """PPO's Learner with RLlib's loss, or with one composed of its parts.

    The latter applies if loss components or another critic loss are configured. RLlib's
    loss is a mean over the trained tokens of its batch. Multiplied by this
    micro-batch's share of all trained tokens of the minibatch, the sum over
    micro-batches and Learners is the mean over all of them.
    """

    config: LLMPPOConfig

    @override(LLMLearnerMixin)
    def build(self) -> None:
        """Build the Learner; the choice of the loss is that of the configuration."""
        super().build()
        self._uses_rllib_loss = {
            module_id: self.config.get_config_for_module(module_id).uses_rllib_loss
            for module_id in self.config.llm_module_ids
        }

    @override(PPOTorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: LLMPPOConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        trained = count(batch)
        if not self._uses_rllib_loss[module_id]:
            total = batch.get(DENOMINATOR, trained)
            return self._token_loss(module_id, config, batch, fwd_out, total)
        predictions = {}
        if config.use_critic:
            # From whole rows; RLlib asks for those of the trained tokens.
            module = self.module[module_id].unwrapped()
            embeddings = fwd_out.get(Columns.EMBEDDINGS)
            values = module.compute_values(batch, embeddings=embeddings)
            predictions = {columns.PREDICTED_VALUES: values}
        scores = {Columns.ACTION_DIST_INPUTS: fwd_out[Columns.ACTION_DIST_INPUTS]}
        loss, logged = rllib_ppo_loss(
            self, module_id, config, {**batch, **predictions}, scores
        )
        # RLlib logs zeros for a critic that does not exist.
        unused = () if config.use_critic else _CRITIC_STATS
        for key in RLLIB_MEANS:
            if key not in unused:
                self._add_stat(module_id, key, logged[key], trained)
        logp = fwd_out[Columns.ACTION_DIST_INPUTS][..., 0]
        if columns.REF_LOGP in batch:
            kl = self._ref_kl_loss(module_id, config, batch, logp)
            loss = loss + torch.as_tensor(kl).sum() / trained
        self._add_token_stats(module_id, logp, batch, _clipped(config, batch, logp))
        # A mean over this micro-batch; the share turns the sum of the parts into the
        # mean over the minibatch and all Learners.
        return loss * (trained / batch.get(DENOMINATOR, trained))

    def _token_loss(
        self,
        module_id: str,
        config: LLMPPOConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
        denominator: float,
    ) -> torch.Tensor:
        """Return the sum of policy loss, entropy, reference KL, terms and critic loss.

        With ``ppo_clip`` and RLlib's critic loss it is RLlib's loss.

        Args:
            module_id: Policy of the loss.
            config: That policy's config.
            batch: The micro-batch.
            fwd_out: Output of the module's forward pass.
            denominator: The minibatch's loss denominator.
        """
        mask = batch[Columns.LOSS_MASK]
        trained = count(batch)
        scores = fwd_out[Columns.ACTION_DIST_INPUTS]
        logp, entropy = scores[..., 0], scores[..., 1].masked_fill(~mask, 0.0)
        choice_logps = fwd_out.get(columns.CHOICE_LOGPS)
        tokens = self.token_batch(module_id, batch, scores, choice_logps)
        components, clip = self._composed_loss[module_id], config.clip_param
        if components.loss is None:
            loss, clipped = ppo_clip(tokens, low=min(1.0, clip), high=clip)
        else:
            loss, clipped = components.policy_loss(tokens)
        for key, value in ((POLICY_LOSS_KEY, loss), (ENTROPY_KEY, entropy)):
            self._add_stat(module_id, key, value.sum() / trained, trained)
        schedule = self.entropy_coeff_schedulers_per_module[module_id]
        loss = loss - schedule.get_current_value() * entropy
        if components.terms:
            loss = loss + self._add_terms(module_id, tokens, trained)
        if columns.REF_LOGP in batch:
            loss = loss + self._ref_kl_loss(module_id, config, batch, logp)
        self._add_token_stats(module_id, logp, batch, clipped)
        weights = batch[columns.LOSS_WEIGHTS]
        total = weighted_loss(loss, weights, denominator)
        if config.use_critic:
            errors = self._value_errors(module_id, config, batch, fwd_out)
            # With values per turn, an episode's weight moves to the first tokens of its
            # turns.
            weights = weights * batch.get(columns.VALUE_WEIGHTS, 1.0)
            total = total + config.vf_loss_coeff * weighted_loss(
                errors, weights, denominator
            )
        return total

    def _value_errors(
        self,
        module_id: str,
        config: LLMPPOConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """Return the critic's loss per token, or per first token of a turn. [B, T]"""
        module = self.module[module_id].unwrapped()
        values = module.compute_values(
            batch, embeddings=fwd_out.get(Columns.EMBEDDINGS)
        )
        targets, mask = batch[Columns.VALUE_TARGETS], batch[Columns.LOSS_MASK]
        if columns.VALUE_WEIGHTS in batch:  # only the first tokens of turns have values
            mask = batch[columns.VALUE_WEIGHTS] > 0
        # RLlib's critic loss, whose cap vf_clip_param the other losses do not have.
        if config.value_loss == "squared" and config.vf_clip_range is None:
            errors = critic_loss(values, targets, mask, largest=config.vf_clip_param)
        else:
            errors = critic_loss(
                values,
                targets,
                mask,
                kind=config.value_loss,
                huber_delta=config.value_huber_delta,
                clip_range=config.vf_clip_range,
                old_values=(
                    None if config.vf_clip_range is None else batch[columns.VALUES]
                ),
            )
        # The metric stays in units of the return, whatever the loss.
        predicted = values.sigmoid() if config.value_loss == "bce" else values
        square = (predicted - targets).square().masked_fill(~mask, 0.0)
        valued = count(batch)
        if columns.VALUE_WEIGHTS in batch:
            valued = int((read(batch, columns.VALUE_WEIGHTS) > 0).sum())
        for key, value in ((VF_LOSS_KEY, errors), ("vf_loss_unclipped", square)):
            self._add_stat(module_id, key, value.sum() / max(1, valued), valued)
        return errors


def _clipped(
    config: LLMPPOConfig, batch: dict[str, Any], logp: torch.Tensor
) -> torch.Tensor:
    """Return the tokens whose ratio RLlib's loss clips. bool [B, T]"""
    return is_clipped(
        (logp.detach() - batch[Columns.ACTION_LOGP]).exp(),
        batch[Columns.ADVANTAGES],
        clip_low=config.clip_param,
        clip_high=config.clip_param,
    )
