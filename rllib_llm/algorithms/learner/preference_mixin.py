"""Losses of pairs and labels in Learners: their gradient in two passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.algorithms.pref.pairs import CHOSEN, MISMATCHED
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import idle_rows, read
from rllib_llm.distributed import equal_passes, sum_tensors
from rllib_llm.losses.aggregation import weighted_loss
from rllib_llm.losses.preference_losses import LabelledSums, PairSums, turn_weights
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.algorithms.config.preferences import PreferencePass


class PreferenceMixin(LearnerStats):
    """Mixin of Learners with losses of episodes' summed log-probabilities.

    A first pass, without gradients, gives the sums. Their loss has one derivative per
    episode, with which a second pass weighs the log-probabilities of its tokens: by the
    chain rule its gradient is that of the loss. So micro-batches may split pairs. The
    first pass is left out where its sums are there without it: if the rows are a single
    micro-batch, whose training pass gives them, and in the first step with
    ``reference: current``, for which ScoreRows has computed them.

    Old and reference log-probabilities and advantages keep their columns:
    ``advantages`` holds minus the derivative, ``loss_weights`` the turn's weight.
    """

    if TYPE_CHECKING:
        is_sharded: bool
        _preference: PreferencePass
        _is_first_pass: bool

        def _parts(self, *args: Any) -> Iterator[dict[str, Any]]: ...

    def build(self) -> None:
        """Build the Learner and the loss."""
        super().build()
        preference = self.config.preference_pass
        if preference is None:
            return
        self._preference = preference
        self._reference_column = (
            Columns.ACTION_LOGP if preference.is_current else columns.REF_LOGP
        )

    def weigh_units(self, module_id: str, data: dict[str, Any] | None) -> None:
        """Write the derivative of the loss into the columns of a minibatch.

        Args:
            module_id: Policy of the rows.
            data: Rows of pairs or labelled episodes; None: this Learner has none.
        """
        if data is None:
            # The other Learners' passes and sums need this one's part.
            self._add_sums(module_id, (), torch.zeros(0, 1, device=self._device))
            if self._preference.compares_labels:
                self._kl(torch.zeros(0, device=self._device))
            return
        units = self._add_units(data)
        parts = list(self._parts(module_id, data, self.config))
        sums = torch.zeros(3, units.num_sums, device=self._device)
        has_old_logps = self._is_first_pass and self._preference.is_current
        in_training = len(parts) == 1 and not (
            has_old_logps or self._preference.compares_labels
        )
        if has_old_logps:
            self._add_columns(data, data[Columns.ACTION_LOGP], sums)
        # Without passes of its own, it joins those of other Learners.
        self._add_sums(module_id, () if has_old_logps or in_training else parts, sums)
        if in_training:
            return
        if self._preference.compares_labels:
            _leave_out(data, units.is_mismatched)
        self._set_advantages(module_id, data, sums)

    def _add_units(self, data: dict[str, Any]) -> _Units:
        """Add which unit a row belongs to, and the weights of its tokens."""
        units = _Units.of(data, self._preference.compares_labels)
        data[columns.LOSS_WEIGHTS] = self._turn_weights(data) * data[Columns.LOSS_MASK]
        data[_UNITS], data[_PLACE] = units, upload(units.place, self._device)
        return units

    def _losses_now(self, module_id: str, data: dict[str, Any]) -> torch.Tensor:
        """Return the loss of each pair of these rows under the current weights. [P]"""
        sums = torch.zeros(3, data[_UNITS].num_sums, device=self._device)
        parts = self._parts(module_id, data, self.config)
        self._add_sums(module_id, parts, sums)
        return self._losses_of_pairs(sums[0], sums)[0]

    @torch.no_grad()
    def _add_sums(
        self, module_id: str, parts: Iterable[dict[str, Any]], sums: torch.Tensor
    ) -> None:
        """Add log-probabilities, the reference's, and token counts. [3, S]"""
        module = self.module[module_id].unwrapped()
        for part in equal_passes(parts, self._device, is_sharded=self.is_sharded):
            if part is None:
                module.forward_train(idle_rows(self._device))
                continue
            out = module.forward_train(part)[Columns.ACTION_DIST_INPUTS]
            self._add_columns(part, out[..., 0], sums)

    def _add_columns(
        self, part: dict[str, Any], logp: torch.Tensor, sums: torch.Tensor
    ) -> None:
        """Add the sums of these rows. ``logp`` [B, T], ``sums`` [3, S]"""
        mask, weights = part[Columns.LOSS_MASK], part[columns.LOSS_WEIGHTS]
        logp = logp.detach().float()
        ref = part.get(self._reference_column, torch.zeros_like(logp)).float()
        for row, values in enumerate((weights * logp, weights * ref, mask)):
            sums[row].index_add_(0, part[_PLACE], (values * mask).sum(1).float())

    def _set_advantages(
        self, module_id: str, rows: dict[str, Any], sums: torch.Tensor
    ) -> None:
        """Write minus the derivative of the loss by a row's sum as its advantage."""
        derivative = self._derivative(module_id, sums, rows[_UNITS])
        weights = -derivative[rows[_PLACE]][:, None]
        rows[Columns.ADVANTAGES] = weights * rows[Columns.LOSS_MASK]
        del rows[_UNITS], rows[_PLACE]

    def _turn_weights(self, data: dict[str, Any]) -> torch.Tensor:
        """Return each token's weight by its turn. [B, T]"""
        discount = self._preference.turn_discount
        turns = read(data, columns.TURN_IDS)
        episodes = read(data, columns.EPISODE_INDEX)
        last = np.zeros(int(episodes.max()) + 1, np.int64)
        # Over all rows of an episode, which may have several.
        np.maximum.at(last, episodes, turns.max(axis=1))
        totals = upload(last[episodes] + 1, self._device)
        return turn_weights(data[columns.TURN_IDS], totals, discount)

    def _derivative(
        self, module_id: str, sums: torch.Tensor, units: _Units
    ) -> torch.Tensor:
        """Return the derivative of the summed loss by each episode's sum. [S]"""
        logp = sums[0].clone().requires_grad_()
        with torch.enable_grad():
            if self._preference.compares_labels:
                loss = self._labelled_loss(module_id, logp, sums, units)
            else:
                loss = self._pair_loss(module_id, logp, sums)
            (derivative,) = torch.autograd.grad(loss.sum(), logp)
        self._add_stat(
            module_id, "preference_loss", loss.detach().mean(), float(len(loss))
        )
        return derivative

    def _pair_loss(
        self, module_id: str, logp: torch.Tensor, sums: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of each pair, and log it. [P]"""
        loss, pairs = self._losses_of_pairs(logp, sums)
        margin = pairs.margin.detach()
        for key, value in (
            # Half for a tie, as at the beginning, where policy and reference agree.
            ("pair_accuracy", 0.5 * (1 + margin.sign())),
            ("margin", margin),
            ("chosen_logratio", pairs.chosen_logratio.detach()),
            ("rejected_logratio", pairs.rejected_logratio.detach()),
            ("chosen_logp", pairs.chosen_mean_logp.detach()),
            ("rejected_logp", pairs.rejected_mean_logp.detach()),
        ):
            self._add_stat(module_id, key, value.mean(), len(value))
        return loss

    def _losses_of_pairs(
        self, logp: torch.Tensor, sums: torch.Tensor
    ) -> tuple[torch.Tensor, PairSums]:
        """Return the loss of each pair [P], and what it depends on."""
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
        loss = self._preference.loss(pairs)
        if self._preference.nll_weight:
            loss = loss - self._preference.nll_weight * pairs.chosen_mean_logp
        return loss, pairs

    def _labelled_loss(
        self, module_id: str, logp: torch.Tensor, sums: torch.Tensor, units: _Units
    ) -> torch.Tensor:
        """Return the loss of each labelled episode. [N]"""
        (policy, other), (ref, other_ref) = (
            each.view(-1, 2).unbind(1) for each in (logp, sums[1])
        )
        # [N]: log-ratios whose mean over all Learners estimates the KL divergence.
        of_kl = policy - ref
        if self._preference.has_mismatched:
            of_kl = (other - other_ref)[upload(units.with_mismatched, self._device)]
        desirable = upload(units.desirable, self._device)
        episodes = LabelledSums(policy, ref, desirable, self._kl(of_kl.detach()))
        loss = self._preference.loss(episodes)
        ratio = episodes.logratio.detach()
        for key, chosen, count in (
            ("chosen_logratio", desirable, units.desirable.sum()),
            ("rejected_logratio", ~desirable, (~units.desirable).sum()),
        ):
            if count:
                self._add_stat(module_id, key, (ratio * chosen).sum() / count, count)
        self._add_stat(module_id, "preference_kl", episodes.kl, float(len(loss)))
        return loss

    def _kl(self, ratios: torch.Tensor) -> torch.Tensor:
        """Return the mean of all Learners' log-ratios, at least 0. []"""
        count = ratios.new_full((), float(len(ratios)))
        total = sum_tensors({"ratios": ratios.sum(), "count": count})
        return (total["ratios"] / total["count"].clamp(min=1)).clamp(min=0)

    def preference_pass(
        self, module_id: str, batch: dict[str, Any], logp: torch.Tensor, total: float
    ) -> torch.Tensor:
        """Return a micro-batch's part of a loss that has the gradient of the loss.

        Args:
            module_id: Policy of the rows.
            batch: A micro-batch of the rows that :meth:`weigh_units` weighed.
            logp: Log-probabilities under the policy being trained. [B, T]
            total: Number of pairs or labelled episodes of all Learners.
        """
        if _UNITS in batch:
            # All rows of this Learner: this pass gives the sums.
            sums = torch.zeros(3, batch[_UNITS].num_sums, device=self._device)
            self._add_columns(batch, logp, sums)
            self._set_advantages(module_id, batch, sums)
        loss = -batch[Columns.ADVANTAGES] * logp
        return weighted_loss(loss, batch[columns.LOSS_WEIGHTS], total)

    def count_compared(self, data: dict[str, Any]) -> float:
        """Return the number of pairs or labelled episodes of a minibatch."""
        return float(_Units.of(data, self._preference.compares_labels).count)


_PLACE, _UNITS = "sum_of_row", "compared_units"  # number of each row's sum [B]


@dataclasses.dataclass(frozen=True)
class _Units:
    """Assignment of a minibatch's rows to pairs or labelled episodes.

    Attributes:
        count: Number of pairs or labelled episodes, ``N``.
        place: Number of the sum that a row belongs to: chosen and rejected of a pair,
            or a labelled episode and its mismatched one, in turns. [B]
        is_mismatched: Whether a row is of a mismatched episode. bool [B]
        desirable: Whether a labelled episode is. bool [N]
        with_mismatched: Numbers of the labelled episodes with a mismatched one.
    """

    count: int
    place: np.ndarray
    is_mismatched: np.ndarray
    desirable: np.ndarray
    with_mismatched: np.ndarray

    @classmethod
    def of(cls, data: dict[str, Any], labels: bool) -> _Units:
        """Return the units of a minibatch; ``labels``: of labelled episodes."""
        ids, unit = np.unique(
            read(data, columns.MULTI_AGENT_EPISODE_INDEX), return_inverse=True
        )
        index = read(data, columns.AGENT_INDEX)
        is_mismatched = index == MISMATCHED
        desirable = np.zeros(len(ids), bool)
        desirable[unit[index == CHOSEN]] = True
        side = is_mismatched if labels else index
        return cls(
            count=len(ids),
            place=2 * unit + side,
            is_mismatched=is_mismatched,
            desirable=desirable,
            with_mismatched=np.unique(unit[is_mismatched]),
        )

    @property
    def num_sums(self) -> int:
        """Number of sums, two per unit."""
        return 2 * self.count


def _leave_out(data: dict[str, Any], is_left_out: np.ndarray) -> None:
    """Take rows out of a minibatch, so that they get no training pass."""
    rows = np.flatnonzero(~is_left_out)
    on_device = upload(rows, data[Columns.LOSS_MASK].device)
    for name, column in list(data.items()):
        if isinstance(column, torch.Tensor) and column.ndim:
            data[name] = column[on_device]
    if columns.HOST in data:
        data[columns.HOST] = data[columns.HOST].select(rows)
