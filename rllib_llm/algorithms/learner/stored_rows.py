"""Rows of episodes that were not sampled for this update, in the Learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.learner_stats import REPLAY_RATIO_SQUARE, LearnerStats
from rllib_llm.data import columns
from rllib_llm.data.episode_data import (
    FILE,
    PAIR,
    REPLAY,
    SAMPLED,
    SOURCES,
    episode_data,
)
from rllib_llm.data.micro_batches import count, keep, read, select_rows, trained_places
from rllib_llm.losses.aggregation import weighted_loss
from rllib_llm.losses.importance_correction import mismatch_weights
from rllib_llm.losses.surrogate import MAX_LOG_RATIO, negative_log_likelihood
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig
    from rllib_llm.losses.composed_loss import ComposedLoss
    from rllib_llm.types import LLMConfig

DENOMINATOR = "loss_denominator"
_TOKEN_SHARES = {
    REPLAY: "replay_token_frac",
    FILE: "file_token_frac",
    PAIR: "pair_token_frac",
}
SOURCE_OF_PART = "source_of_part"  # source of a micro-batch's rows
# Columns that functions of the sampled rows add or change.
_CHANGED = (
    Columns.ADVANTAGES,
    columns.ENTROPY_RANK,
    columns.COVARIANCE_RANK,
    columns.CAUSAL_WEIGHTS,
    columns.SUCCESS_SHARE,
)


class StoredRowsMixin(LearnerStats):
    """Mixin that trains on replayed rows, files and pairs beside sampled rows.

    Each source of rows has micro-batches, a denominator and a coefficient of its own:
    ``loss = mean over sampled + coeff * mean over replayed``. Metrics of sampled rows,
    their ranks and importance weights do not depend on the others.
    """

    def build(self) -> None:
        """Build the Learner and the losses of replayed rows."""
        super().build()
        self._sources: tuple[str, ...] = (SAMPLED,)
        self._replay_losses: dict[str, ComposedLoss] = {}
        if self.config.mixes_files:
            self._sources = (*self._sources, FILE)
        if self.config.mixes_pairs:
            self._sources = (*self._sources, PAIR)
        if not self.config.uses_replay:
            return
        self._sources = (*self._sources, REPLAY)
        for module_id in self.config.llm_module_ids:
            config = cast("GRPOConfig", self.config.get_config_for_module(module_id))
            self._replay_losses[module_id] = config.build_replay_loss()

    def by_source(self, data: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
        """Return the rows of each source that has any."""
        if data is None:
            return {}
        if columns.SOURCE not in data:
            return {SAMPLED: data}
        sources = read(data, columns.SOURCE)
        return {
            SOURCES[number]: select_rows(data, np.flatnonzero(sources == number))
            for number in np.unique(sources)
        }

    def on_sampled(
        self, data: dict[str, Any], change: Callable[[dict[str, Any]], None]
    ) -> None:
        """Let a function change the columns of sampled rows; others keep theirs."""
        if columns.SOURCE not in data:
            change(data)
            return
        is_sampled = read(data, columns.SOURCE) == SOURCES.index(SAMPLED)
        index = np.flatnonzero(is_sampled)
        part = select_rows(data, index)
        change(part)
        rows = upload(index, self._device)
        for name in _CHANGED:
            if name in part:
                whole = torch.zeros(
                    (len(is_sampled), *part[name].shape[1:]),
                    dtype=part[name].dtype,
                    device=part[name].device,
                )
                whole = data[name].clone() if name in data else whole
                whole[rows] = part[name]
                data[name] = whole
        if columns.SUCCESS_SHARE in part:
            keep(data, columns.SUCCESS_SHARE, data[columns.SUCCESS_SHARE].cpu().numpy())

    def _parts_by_source(
        self,
        module_id: str,
        of_source: dict[str, dict[str, Any]],
        denominators: dict[str, float],
        config: LLMConfig,
    ) -> Iterator[dict[str, Any]]:
        """Yield micro-batches of rows of one source each, with its denominator.

        Args:
            module_id: Policy of the rows.
            of_source: Rows by source.
            denominators: Units over all Learners, divided by the coefficient.
            config: That policy's config.
        """
        for source, denominator_of_source in denominators.items():
            if source not in of_source:
                continue
            for part in self._parts(module_id, of_source[source], config):
                part[DENOMINATOR], part[SOURCE_OF_PART] = denominator_of_source, source
                yield part

    def source_coeff(self, source: str, config: LLMConfig) -> float:
        """Return the factor of a source's mean loss in this update."""
        if source == SAMPLED:
            return 1.0
        # RLlib counts the update before it runs; schedules begin at 0.
        update = max(0, self._weights_seq_no - 1)
        settings: Any = config
        if source == PAIR:
            coeff = settings.preference_coeff_at
        else:
            is_file = source == FILE
            coeff = settings.data_coeff_at if is_file else settings.replay_coeff_at
        return float(coeff(update))

    def sampled_only(self, episodes: Sequence[Any]) -> list[Any]:
        """Return the episodes that were sampled for this update."""
        return [e for e in episodes if source_of(e) == SAMPLED]

    def _has_recorded_logps(self, source: str) -> bool:
        """Return whether the recorded log-probabilities are the old ones."""
        config = cast("GRPOConfig", self.config)
        return source == REPLAY and config.replay_old_logps == "engine"

    def _log_sources(self, module_id: str, data: dict[str, Any]) -> None:
        """Log the shares of stored tokens, and the advantages of sampled ones."""
        sampled = self.by_source(data).get(SAMPLED)
        if sampled is not None:
            self._log_advantages(module_id, sampled)
        mask, trained = read(data, Columns.LOSS_MASK), count(data)
        for source in self._sources[1:] if trained else ():
            of_source = np.zeros(0)
            if columns.SOURCE in data:
                number = SOURCES.index(source)
                of_source = mask[read(data, columns.SOURCE) == number]
            share = float(of_source.sum()) / trained
            self._add_stat(module_id, _TOKEN_SHARES[source], share, trained)

    def _file_loss(
        self,
        module_id: str,
        batch: dict[str, Any],
        scores: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """Return the negative log-likelihood of a micro-batch of files' rows."""
        trained = count(batch)
        nll = negative_log_likelihood(scores[..., 0], batch[Columns.LOSS_MASK])
        self._add_stat(module_id, "file_nll", nll.sum() / trained, trained)
        return weighted_loss(nll, batch[columns.LOSS_WEIGHTS], denominator)

    def _replay_loss(
        self,
        module_id: str,
        config: LLMConfig,
        batch: dict[str, Any],
        scores: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """Return the loss of a micro-batch of replayed rows.

        Args:
            module_id: Policy of the rows.
            config: That policy's config.
            batch: The micro-batch.
            scores: Log-probabilities and entropies. [B, T, 2]
            denominator: Denominator of the source's rows over its coefficient.
        """
        trained = count(batch)
        if not self._has_recorded_logps(REPLAY):
            self._weigh_replayed(module_id, config, batch, trained)
        components = self._replay_losses[module_id]
        if components.loss is None:
            loss, clipped = self.policy_loss(module_id, config, batch, scores)
        else:
            tokens = self.token_batch(module_id, batch, scores)
            loss, clipped = components.policy_loss(tokens)
        self._add_stat(module_id, "replay_loss", loss.sum() / trained, trained)
        self._add_replay_stats(module_id, batch, scores[..., 0], clipped)
        return weighted_loss(loss, batch[columns.LOSS_WEIGHTS], denominator)

    @torch.no_grad()
    def _weigh_replayed(
        self, module_id: str, config: LLMConfig, batch: dict[str, Any], trained: int
    ) -> None:
        """Multiply the advantages by the ratio of the policy before the update."""
        correction = mismatch_weights(
            batch[Columns.ACTION_LOGP],
            batch[columns.BEHAVIOUR_LOGP],
            batch[Columns.LOSS_MASK],
            batch[columns.EPISODE_INDEX],
            tis="token",
            tis_clip=config.tis_clip,
            num_sequences=int(read(batch, columns.EPISODE_INDEX).max()) + 1,
        )
        batch[Columns.ADVANTAGES] = batch[Columns.ADVANTAGES] * correction.weights
        for key, value in (
            ("replay_is_weight_mean", correction.weights),
            ("replay_is_clipped_frac", correction.clipped),
        ):
            self._add_stat(module_id, key, value.sum() / trained, trained)

    @torch.no_grad()
    def _add_replay_stats(
        self,
        module_id: str,
        batch: dict[str, Any],
        logp: torch.Tensor,
        clipped: torch.Tensor,
    ) -> None:
        where, trained = trained_places(batch), count(batch)
        gap = (logp - batch[columns.BEHAVIOUR_LOGP])[where]
        ratio = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        for key, value in (
            ("replay_ratio_mean", ratio.mean()),
            (REPLAY_RATIO_SQUARE, ratio.square().mean()),
            ("replay_clip_frac", clipped[where].float().mean()),
        ):
            self._add_stat(module_id, key, value, trained)

    if TYPE_CHECKING:

        def _parts(self, *args: Any) -> Iterator[dict[str, Any]]: ...
        def policy_loss(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]: ...
        def token_batch(self, *args: Any) -> Any: ...


def source_of(episode: Any) -> str:
    """Return the origin of an episode, which all agents' parts share."""
    return episode_data(episode).source


def episodes_by_source(
    data: dict[str, dict[str, Any]], owners: dict[str, np.ndarray], ids: np.ndarray
) -> list[np.ndarray]:
    """Return the episodes of every source, in the order of ``SOURCES``."""
    sources = np.zeros(len(ids), np.int64)
    for module_id, columns_of_module in data.items():
        if columns.SOURCE in columns_of_module:
            places = np.searchsorted(ids, owners[module_id])
            sources[places] = read(columns_of_module, columns.SOURCE)
    numbers = range(len(SOURCES) if sources.any() else 1)
    return [ids[sources == number] for number in numbers]
