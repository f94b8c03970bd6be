"""Pref's Learner: the gradient of a pair loss in two passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import idle_rows, read
from rllib_llm.distributed import equal_passes
from rllib_llm.losses.aggregation import weighted_loss
from rllib_llm.losses.preference_losses import PairSums, turn_weights
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.algorithms.pref.pref_config import PrefConfig
    from rllib_llm.types import Episode


class PrefTorchLearner(LLMLearnerMixin, TorchLearner):
    """Learner of losses that depend on an episode's log-probabilities by their sum.

    The first pass, without gradients, gives the sums. Their loss has one derivative per
    episode, with which the second pass weighs the log-probabilities of its tokens: by
    the chain rule its gradient is that of the loss. So micro-batches may split pairs.

    Old and reference log-probabilities and advantages keep their columns:
    ``advantages`` holds minus the derivative, ``loss_weights`` the turn's weight.
    """

    config: PrefConfig

    def build(self) -> None:
        """Build the Learner and the loss."""
        super().build()
        self._pair_loss = self.config.build_preference_loss().call

    @override(TorchLearner)
    def _uncompiled_update(
        self, batch: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
        for module_id in sorted(self.module.keys()):
            self._weigh(module_id, batch.get(module_id))
        return super()._uncompiled_update(batch, **kwargs)

    def _weigh(self, module_id: str, data: dict[str, Any] | None) -> None:
        """Write the derivative of the loss into the columns of a minibatch."""
        if data is None:
            # Sharded layers: the other Learners' passes need this one's part.
            self._add_sums(module_id, (), torch.zeros(0, 1, device=self._device))
            return
        pairs, place = _pair_places(data)
        place = upload(place, self._device)
        weights = self._turn_weights(data)
        data[columns.LOSS_WEIGHTS] = weights * data[Columns.LOSS_MASK]
        columns_of_sums = torch.zeros(3, 2 * pairs, device=self._device)
        data[_PLACE] = place
        parts = self._parts(module_id, data, self.config)
        self._add_sums(module_id, parts, columns_of_sums)
        del data[_PLACE]
        derivative = self._derivative(module_id, columns_of_sums)
        data[Columns.ADVANTAGES] = -derivative[place][:, None] * data[Columns.LOSS_MASK]

    @torch.no_grad()
    def _add_sums(
        self, module_id: str, parts: Iterator[dict[str, Any]] | tuple[()], sums: Any
    ) -> None:
        """Add log-probabilities, the reference's, and token counts. [3, 2 P]"""
        module = self.module[module_id].unwrapped()
        for part in equal_passes(parts, self._device, is_sharded=self.is_sharded):
            if part is None:
                module.forward_train(idle_rows(self._device))
                continue
            mask, weights = part[Columns.LOSS_MASK], part[columns.LOSS_WEIGHTS]
            out = module.forward_train(part)[Columns.ACTION_DIST_INPUTS]
            logp = out[..., 0].float()
            ref = part.get(columns.REF_LOGP, torch.zeros_like(logp)).float()
            for row, values in enumerate((weights * logp, weights * ref, mask)):
                sums[row].index_add_(0, part[_PLACE], (values * mask).sum(1).float())

    def _turn_weights(self, data: dict[str, Any]) -> torch.Tensor:
        """Return each token's weight by its turn. [B, T]"""
        discount = self.config.turn_discount
        turns = read(data, columns.TURN_IDS)
        episodes = read(data, columns.EPISODE_INDEX)
        last = np.zeros(int(episodes.max()) + 1, np.int64)
        # Over all rows of an episode, which may have several.
        np.maximum.at(last, episodes, turns.max(axis=1))
        totals = upload(last[episodes] + 1, self._device)
        return turn_weights(data[columns.TURN_IDS], totals, discount)

    def _derivative(self, module_id: str, sums: torch.Tensor) -> torch.Tensor:
        """Return the derivative of the summed loss by each episode's sum. [2 P]"""
        logp = sums[0].detach().clone().requires_grad_()
        policy, ref, length = (each.view(-1, 2) for each in (logp, sums[1], sums[2]))
        # A side whose tokens are all masked has the constant sum 0.
        length = length.clamp(min=1)
        pairs = PairSums(
            chosen_logp=policy[:, 0],
            rejected_logp=policy[:, 1],
            chosen_ref=ref[:, 0],
            rejected_ref=ref[:, 1],
            chosen_length=length[:, 0],
            rejected_length=length[:, 1],
        )
        with torch.enable_grad():
            loss = self._pair_loss(pairs)
            if self.config.nll_weight:
                loss = loss - self.config.nll_weight * pairs.chosen_mean_logp
            (derivative,) = torch.autograd.grad(loss.sum(), logp)
        self._log_pairs(module_id, loss, pairs)
        return derivative

    def _log_pairs(self, module_id: str, loss: torch.Tensor, pairs: PairSums) -> None:
        count = len(loss)
        margin = pairs.margin.detach()
        for key, value in (
            ("preference_loss", loss.detach()),
            # Half for a tie, as at the beginning, where policy and reference agree.
            ("pair_accuracy", 0.5 * (1 + margin.sign())),
            ("margin", margin),
            ("chosen_logratio", pairs.chosen_logratio.detach()),
            ("rejected_logratio", pairs.rejected_logratio.detach()),
            ("chosen_logp", pairs.chosen_mean_logp.detach()),
            ("rejected_logp", pairs.rejected_mean_logp.detach()),
        ):
            self._add_stat(module_id, key, value.mean(), count)

    @override(TorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: PrefConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        logp = fwd_out[Columns.ACTION_DIST_INPUTS][..., 0]  # [B, T]
        loss = -batch[Columns.ADVANTAGES] * logp
        return weighted_loss(loss, batch[columns.LOSS_WEIGHTS], batch[DENOMINATOR])

    @override(LLMLearnerMixin)
    def _count_units(self, data: dict[str, Any], config: Any) -> float:
        """Return the number of pairs, the denominator of the loss."""
        return float(_pair_places(data)[0])

    @override(LLMLearnerMixin)
    def _log_lag(self, episodes: Sequence[Episode]) -> None:
        """Log the age of the weights that sampled; written turns have none."""
        if self.config.data_files is None and not self.config.expert_episodes:
            super()._log_lag(episodes)


_PLACE = "pair_place"  # 2 * pair + side of each row [B]


def _pair_places(data: dict[str, Any]) -> tuple[int, np.ndarray]:
    """Return the number of pairs, and ``2 * pair + side`` of every row. [B]"""
    units = read(data, columns.MULTI_AGENT_EPISODE_INDEX)
    units, pair = np.unique(units, return_inverse=True)
    return len(units), 2 * pair + read(data, columns.AGENT_INDEX)
