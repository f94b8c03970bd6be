"""LLMPPO's Learner: RLlib's PPO loss, unmodified, over masked tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.ppo.ppo import (
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
)
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import VF_LOSS_KEY
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import DENOMINATOR, LLMLearnerMixin
from rllib_llm.algorithms.learner.non_llm_learner import RLLIB_MEANS
from rllib_llm.algorithms.ppo.token_loss import token_ppo_loss
from rllib_llm.losses.surrogate import is_clipped

if TYPE_CHECKING:
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig

_CRITIC_STATS = (
    VF_LOSS_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
)


class LLMPPOTorchLearner(LLMLearnerMixin, PPOTorchLearner):
    """PPO's Learner with RLlib's loss, or :func:`token_ppo_loss`.

    The latter applies if loss components or another critic loss are configured. RLlib's
    loss is a mean over the trained tokens of its batch. Multiplied by this
    micro-batch's share of all trained tokens of the minibatch, the sum over
    micro-batches and Learners is the mean over all of them.
    """

    @override(PPOTorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: LLMPPOConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        mask = batch[Columns.LOSS_MASK]
        trained = int(mask.sum())
        if not config.uses_rllib_loss:
            total = batch.get(DENOMINATOR, trained)
            return token_ppo_loss(self, module_id, config, batch, fwd_out, total)
        loss = super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )
        means: Sequence[Any] = RLLIB_MEANS
        if not config.use_critic:  # RLlib logs zeros for a critic that does not exist
            means = [key for key in means if key not in _CRITIC_STATS]
            for key in _CRITIC_STATS:
                self.metrics.delete(module_id, key, key_error=False)
        for key in means:
            value = torch.as_tensor(self.metrics.peek((module_id, key)))
            self._add_stat(module_id, key, value, trained)
        logp = fwd_out[Columns.ACTION_DIST_INPUTS][..., 0]
        kl = self._ref_kl_loss(module_id, config, batch, logp)
        loss = loss + torch.as_tensor(kl).sum() / trained
        self._add_token_stats(module_id, logp, batch, _clipped(config, batch, logp))
        return loss * (trained / batch.get(DENOMINATOR, trained))


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
