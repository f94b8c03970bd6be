"""Training of non-LLM RLModules in Learners of language models."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY

from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.algorithms.learner.rllib_loss import rllib_ppo_loss
from rllib_llm.data.micro_batches import count
from rllib_llm.distributed import all_reduce_sum

RLLIB_MEANS = (
    POLICY_LOSS_KEY,
    VF_LOSS_KEY,
    LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    ENTROPY_KEY,
    "mean_kl_loss",
)


class NonLLMLearnerMixin(LearnerStats):
    """Mixin with RLlib's PPO loss for RLModules with numeric observations.

    Their rows are time steps; a minibatch of episodes is one pass. RLlib's loss is a
    mean over the time steps of this Learner; multiplied by their share of all Learners'
    steps, the sum over Learners is the mean over all.
    """

    def _backward_non_llm(
        self, module_id: str, data: dict[str, Any] | None
    ) -> tuple[Any, torch.Tensor, float]:
        """Accumulate the gradient of one module.

        Returns:
            The forward pass, the loss, and the number of time steps over all Learners.
        """
        steps = 0.0 if data is None else float(count(data))
        total = all_reduce_sum([steps], self._device)[0]
        if data is None or not steps:
            return None, torch.zeros((), device=self._device), total
        fwd_out = self.module[module_id].unwrapped().forward_train(data)
        # RLlib's loss, not the one of language models that the Learner overrides it
        # with.
        config = self.config.get_config_for_module(module_id)
        loss, logged = rllib_ppo_loss(self, module_id, config, data, fwd_out)
        for key in RLLIB_MEANS:
            # RLlib's means, weighted by their time steps.
            self._add_stat(module_id, key, logged[key], steps)
        # Learners sum gradients, so each mean counts by its share of the time steps.
        loss = loss * (steps / total)
        loss.backward()
        return fwd_out, loss.detach(), total
