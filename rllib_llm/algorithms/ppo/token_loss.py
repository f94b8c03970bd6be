"""LLMPPO's loss with configured components or another critic loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY

from rllib_llm.data import columns
from rllib_llm.losses.policy_losses import ppo_clip
from rllib_llm.losses.surrogate import weighted_loss
from rllib_llm.losses.value_losses import critic_loss

if TYPE_CHECKING:
    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig


def token_ppo_loss(
    learner: LLMLearnerMixin,
    module_id: str,
    config: LLMPPOConfig,
    batch: dict[str, Any],
    fwd_out: dict[str, torch.Tensor],
    denominator: float,
) -> torch.Tensor:
    """Return the sum of policy loss, entropy, reference KL, terms and critic loss.

    With ``ppo_clip`` and RLlib's critic loss it is RLlib's loss.

    Args:
        learner: A learner with :class:`LLMLearnerMixin`.
        module_id: Policy of the loss.
        config: That policy's config.
        batch: The micro-batch.
        fwd_out: Output of the module's forward pass.
        denominator: The minibatch's loss denominator.
    """
    mask = batch[Columns.LOSS_MASK]
    trained = int(mask.sum())
    scores = fwd_out[Columns.ACTION_DIST_INPUTS]
    logp, entropy = scores[..., 0], scores[..., 1].masked_fill(~mask, 0.0)
    tokens = learner.token_batch(module_id, batch, scores)
    components, clip = learner._composed_loss[module_id], config.clip_param
    if components.loss is None:
        loss, clipped = ppo_clip(tokens, low=min(1.0, clip), high=clip)
    else:
        loss, clipped = components.policy_loss(tokens)
    for key, value in ((POLICY_LOSS_KEY, loss), (ENTROPY_KEY, entropy)):
        learner._add_stat(module_id, key, value.sum() / trained, trained)
    schedule = learner.entropy_coeff_schedulers_per_module[module_id]
    loss = loss - schedule.get_current_value() * entropy
    if components.terms:
        loss = loss + learner._add_terms(module_id, tokens, trained)
    loss = loss + learner._ref_kl_loss(module_id, config, batch, logp)
    learner._add_token_stats(module_id, logp, batch, clipped)
    weights = batch[columns.LOSS_WEIGHTS]
    total = weighted_loss(loss, weights, denominator)
    if config.use_critic:
        errors = _value_errors(learner, module_id, config, batch, fwd_out)
        weights = weights * batch.get(columns.VALUE_WEIGHTS, 1.0)
        total = total + config.vf_loss_coeff * weighted_loss(
            errors, weights, denominator
        )
    return total


def _value_errors(
    learner: LLMLearnerMixin,
    module_id: str,
    config: LLMPPOConfig,
    batch: dict[str, Any],
    fwd_out: dict[str, torch.Tensor],
) -> torch.Tensor:
    """Return the critic's loss of each token, or of each turn's first token. [B, T]"""
    module = learner.module[module_id].unwrapped()
    values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
    targets, mask = batch[Columns.VALUE_TARGETS], batch[Columns.LOSS_MASK]
    if columns.VALUE_WEIGHTS in batch:  # only the first tokens of turns have values
        mask = batch[columns.VALUE_WEIGHTS] > 0
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
    predicted = values.sigmoid() if config.value_loss == "bce" else values
    square = (predicted - targets).square().masked_fill(~mask, 0.0)
    count = int(mask.sum())
    for key, value in ((VF_LOSS_KEY, errors), ("vf_loss_unclipped", square)):
        learner._add_stat(module_id, key, value.sum() / max(1, count), count)
    return errors
