"""Turn critics in Learners: their loss, their advantages, their target network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.score_losses import ScoreLossesMixin
from rllib_llm.algorithms.scorer.scorer_settings import VTRACE
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches, trained_places
from rllib_llm.data.turn_ends import TurnEnds, turns_of_tokens
from rllib_llm.losses.turn_value_losses import (
    success_advantages,
    turn_critic_loss,
    vtrace,
)
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings


class TurnCriticMixin(ScoreLossesMixin):
    """Mixin with the losses "td", "monte_carlo" and "vtrace" of a scorer."""

    _settings: ScorerSettings

    def _turn_advantages(self, part: dict[str, Any]) -> tuple[TurnEnds, torch.Tensor]:
        """Return the ends of turns and the critic's advantage of each. [M]"""
        ends, out = TurnEnds.of(part), self._turn_values(part)
        values = out[Columns.VF_PREDS]
        if self._settings.scorer_loss == "monte_carlo":
            rewards, after = self._steps(part, ends)
            return ends, success_advantages(values, rewards, after)
        if self._settings.scorer_loss == VTRACE:
            return ends, self._vtrace(part, ends, values)[1]
        return ends, out[columns.QF_PREDS].min(dim=0).values - values

    def _turn_critic_sum(self, part: dict[str, Any]) -> torch.Tensor:
        """Return the summed loss of a micro-batch of whole episodes."""
        ends, out = TurnEnds.of(part), self._turn_values(part)
        values = out[Columns.VF_PREDS]
        if self._settings.scorer_loss == "monte_carlo":
            return self.outcome_sum(SCORER_MODULE, values, part, ends.rows)
        if self._settings.scorer_loss == VTRACE:
            targets, _, clipped = self._vtrace(part, ends, values)
            loss = (values - targets).square()
            for key, value in (
                ("score_loss", loss),
                ("vf_loss", loss),
                ("vtrace_clip_frac", clipped.float()),
            ):
                self._add_stat(SCORER_MODULE, key, value.mean(), len(values))
            return loss.sum()
        target = self.module[SCORER_MODULE].unwrapped().forward_target(part)
        q = out[columns.QF_PREDS]
        of_q, of_v = turn_critic_loss(
            q,
            values,
            target[columns.QF_PREDS],
            target[Columns.VF_PREDS],
            *self._steps(part, ends),
            gamma=self._settings.scorer_gamma,
            expectile=self._settings.scorer_expectile,
        )
        for key, value in (
            ("score_loss", of_q + of_v),
            ("qf_loss", of_q),
            ("vf_loss", of_v),
            ("qf_mean", q.min(dim=0).values.detach()),
        ):
            self._add_stat(SCORER_MODULE, key, value.mean(), len(values))
        return (of_q + of_v).sum()

    @torch.no_grad()
    def policy_logps(self, data: dict[str, Any]) -> torch.Tensor:
        """Return the log-probabilities of rows under the policy as it is. [B, T]

        The policy stays as it is while the scorer is updated.
        """
        (module_id,) = self.config.trained_module_ids
        module = self.module[module_id].unwrapped()
        logps = torch.zeros_like(data[columns.BEHAVIOUR_LOGP])
        for index, part in micro_batches(
            data, self.config.micro_batch_tokens, packing=self.config.packing
        ):
            computed = module.forward_train(part)[Columns.ACTION_DIST_INPUTS][..., 0]
            # Micro-batches are cut to their longest row.
            logps[index, : computed.shape[1]] = computed.to(logps.dtype)
        return logps

    def _vtrace(
        self, part: dict[str, Any], ends: TurnEnds, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return targets, advantages and clipped turns, for the current policy. [M]"""
        where = trained_places(part)
        gaps = (part[Columns.ACTION_LOGP] - part[columns.BEHAVIOUR_LOGP])[where]
        log_ratios = torch.zeros_like(values).index_add_(
            0,
            upload(turns_of_tokens(part), self._device),
            gaps.to(values.dtype),
        )
        rewards, after = self._steps(part, ends)
        threshold = self._settings.scorer_clip_rho_threshold
        targets, advantages = vtrace(
            values,
            rewards,
            log_ratios,
            after,
            gamma=self._settings.scorer_gamma,
            clip_rho_threshold=threshold,
        )
        return targets, advantages, log_ratios.exp() > threshold

    def _update_target_network(self) -> None:
        """Follow an optimiser step with the target network."""
        if self._settings.scorer_loss == "td":
            module = self.module[SCORER_MODULE].unwrapped()
            module.update_targets(self._settings.scorer_tau)

    def _turn_values(self, part: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = self.module[SCORER_MODULE].unwrapped().forward_train(part)
        return out

    def _steps(
        self, part: dict[str, Any], ends: TurnEnds
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the reward of each turn and the index of the next one. 2 x [M]"""
        # A turn's reward is on its last token.
        where = upload(np.stack([ends.rows, ends.cols]), self._device)
        rewards = part[columns.TOKEN_REWARDS][where[0], where[1]]
        return rewards, upload(ends.next_turns(), self._device)
