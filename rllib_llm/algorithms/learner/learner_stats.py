"""Statistics of one update: weighted means, maxima and histograms over tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.policy.sample_batch import MultiAgentBatch
from ray.rllib.utils.annotations import override

from rllib_llm.callbacks.histograms import log_histograms
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.data.micro_batches import (
    count,
    num_positions,
    places,
    read,
    trained_places,
)
from rllib_llm.distributed import sum_by_key
from rllib_llm.losses.surrogate import MAX_LOG_RATIO
from rllib_llm.rllib_bases import RLlibLearner

if TYPE_CHECKING:
    from rllib_llm.types import Episode

# Means from which other metrics are made; not metrics themselves.
IS_WEIGHT_SQUARE = "is_weight_square"
REPLAY_RATIO_SQUARE = "replay_ratio_square"
_INTERMEDIATE_STATS = ("value_target_square", "value_error_mean", "value_error_square")


class LearnerStats(RLlibLearner):
    """Weighted means and maxima over micro-batches, logged once per update.

    Means are over the tokens of all Learners. Numbers stay tensors until the end of the
    update, so that collecting one does not wait for the device: masks are read from
    their copies on the host (:mod:`rllib_llm.data.micro_batches`).
    """

    _critic_id: str | None
    _is_first_pass: bool
    _mismatch_in_first_pass: bool
    _nan_steps: int

    @override(Learner)
    def _log_metrics(self, batch: MultiAgentBatch) -> None:
        """Count steps; skip minibatches without rows, since Ray refuses a zero."""
        if batch.policy_batches:
            super()._log_metrics(batch)

    def _reset_stats(self) -> None:
        self._stats: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(float))
        self._maxima: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self._histogram_values: dict[tuple[str, str], list[Any]] = defaultdict(list)

    @property
    def measures_mismatch(self) -> bool:
        """True if this pass measures the train-inference mismatch."""
        return self._is_first_pass and self._mismatch_in_first_pass

    def _is_critic(self, module_id: str) -> bool:
        """Return whether a module only estimates values; a policy may have its name."""
        return module_id == self._critic_id

    def _add_stat(
        self, module_id: str, key: str, value: torch.Tensor | float, weight: float
    ) -> None:
        """Accumulate a weighted mean over the micro-batches of one update."""
        if isinstance(value, torch.Tensor):
            # Otherwise the graph of every micro-batch would stay alive until the end.
            value = value.detach()
        stats = self._stats[module_id]
        stats[key] = stats[key] + value * weight
        stats[key + "/weight"] += weight

    def _max_stat(self, module_id: str, key: str, value: torch.Tensor | float) -> None:
        """Keep the largest value of one update."""
        self._maxima[module_id, key].append(value)

    def _add_histogram_values(
        self, module_id: str, name: str, values: torch.Tensor
    ) -> None:
        """Collect values of a micro-batch for a histogram of the update."""
        self._histogram_values[module_id, name].append(
            values.detach().float().flatten()
        )

    def _add_padding(self, module_id: str, part: dict[str, Any]) -> None:
        """Count the positions of a micro-batch that hold no token."""
        real, size = int(read(part, columns.ATTENTION_MASK).sum()), num_positions(part)
        self._add_stat(module_id, "padding_frac", 1.0 - real / size, size)

    @torch.no_grad()
    def _add_token_stats(
        self,
        module_id: str,
        logp: torch.Tensor,
        batch: dict[str, Any],
        clipped: torch.Tensor,
    ) -> None:
        """Accumulate ratio, clipping, KL and critic statistics of one micro-batch.

        Args:
            module_id: Policy of the statistics.
            logp: Log-probabilities under the current policy. [B, T]
            batch: The micro-batch.
            clipped: Tokens on which a bound of the policy loss acted. bool [B, T]
        """
        where, trained = trained_places(batch), count(batch)
        log_ratio = (logp - batch[Columns.ACTION_LOGP])[where]
        # As in the losses: one token that became impossible must not make means
        # infinite.
        bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = bounded.exp()
        self._add_histogram_values(module_id, "log_ratios", log_ratio)
        for key, value in (
            # k3 of KL(old || new): r - 1 - log r, tokens sampled from the old policy.
            ("approx_kl_k3", (ratio - 1.0 - bounded).mean()),
            ("clip_frac", clipped[where].float().mean()),
            ("ratio_mean", ratio.mean()),
        ):
            self._add_stat(module_id, key, value, trained)
        if self.measures_mismatch:
            self._add_mismatch_stats(module_id, logp, batch)
        if columns.VALUES in batch:
            if columns.VALUE_WEIGHTS in batch:  # only turns have values
                valued = read(batch, columns.VALUE_WEIGHTS) > 0
                where, trained = places(valued, logp.device), int(valued.sum())
                if not trained:
                    return
            # Sums of squares: variances of micro-batches cannot be averaged. [N]
            targets = batch[Columns.VALUE_TARGETS][where]
            error = targets - batch[columns.VALUES][where]
            for key, value in (
                ("value_target_mean", targets.mean()),
                ("value_target_square", targets.square().mean()),
                ("value_error_mean", error.mean()),
                ("value_error_square", error.square().mean()),
            ):
                self._add_stat(module_id, key, value, trained)

    @torch.no_grad()
    def _add_mismatch_stats(
        self, module_id: str, logp: torch.Tensor, batch: dict[str, Any]
    ) -> None:
        """Accumulate the train-inference mismatch of log-probabilities.

        Args:
            module_id: Policy of the statistics.
            logp: Log-probabilities under the policy before this update. [B, T]
            batch: The batch, or one micro-batch.
        """
        where = trained_places(batch)
        mismatch = (logp - batch[columns.BEHAVIOUR_LOGP])[where].abs()  # [N]
        self._add_histogram_values(module_id, "train_inference_mismatches", mismatch)
        self._add_stat(
            module_id, "train_inference_mismatch_mean", mismatch.mean(), len(mismatch)
        )
        self._max_stat(module_id, "train_inference_mismatch_max", mismatch.max())

    def _means(self) -> dict[str, dict[str, float]]:
        """Return the means over the tokens of all Learners, by module."""
        sums = {
            f"{module_id}\t{key}": value
            for module_id, stats in self._stats.items()
            for key, value in stats.items()
        }
        values = _to_floats(list(sums.values()))
        means: dict[str, dict[str, float]] = defaultdict(dict)
        totals = sum_by_key(dict(zip(sums, values, strict=True)), self._device)
        for name, total in totals.items():
            # A key without weight is a weight itself.
            weight = totals.get(name + "/weight")
            if weight:
                module_id, key = name.split("\t")
                means[module_id][key] = total / weight
        return means

    def _log_stats(self) -> None:
        for module_id, means in self._means().items():
            if "value_target_mean" in means:
                explained = explained_variance(means)
                for key in _INTERMEDIATE_STATS:
                    del means[key]
                if explained is not None:
                    means["vf_explained_var"] = explained
            square = means.pop(IS_WEIGHT_SQUARE, 0.0)
            if square:  # 0 if masks have left no token
                share = means["is_weight_mean"] ** 2 / square
                means["is_effective_sample_frac"] = share
            square = means.pop(REPLAY_RATIO_SQUARE, 0.0)
            if square:
                share = means["replay_ratio_mean"] ** 2 / square
                means["replay_effective_sample_frac"] = share
            for key, value in means.items():
                self.metrics.log_value((module_id, key), value, window=1)
        for path, maxima in self._maxima.items():
            largest = max(_to_floats(maxima))
            self.metrics.log_value(path, largest, reduce="max", window=1)
        for (module_id, name), parts in self._histogram_values.items():
            values = torch.cat(parts).cpu().numpy()
            log_histograms(self.metrics, {name: values}, module_id)
        self._reset_stats()
        for module_id in self.module.keys():
            self.metrics.log_value(
                (module_id, "nan_steps_skipped"), self._nan_steps, window=1
            )

    def _log_lag(self, episodes: Sequence[Episode]) -> None:
        """Log how many updates old the weights are that sampled each token."""
        ages: dict[str, list[np.ndarray]] = defaultdict(list)
        mixed: dict[str, list[bool]] = defaultdict(list)
        for part in (p for e in episodes for p in agent_episodes(e)):
            module_id = part.module_id or DEFAULT_MODULE_ID
            for turn in part.get_extra_model_outputs(columns.TURN):
                # RLlib has counted this update already.
                age = self._weights_seq_no - 1 - turn.token_versions
                ages[module_id].append(age)
                mixed[module_id].append(bool(turn.version_changes))
        for module_id, parts in ages.items():
            values, turns = np.concatenate(parts), mixed[module_id]
            self._add_stat(
                module_id, "policy_staleness_mean", float(values.mean()), len(values)
            )
            if not self.config.sample_ahead:
                continue  # all weights are the newest
            self._max_stat(module_id, "policy_staleness_max", float(values.max()))
            share = sum(turns) / len(turns)
            self._add_stat(module_id, "mixed_version_turn_frac", share, len(turns))
            self._add_histogram_values(
                module_id, "policy_staleness", torch.from_numpy(values)
            )

    def _log_batch(self, data: dict[str, dict[str, Any]]) -> None:
        for module_id, d in data.items():
            attention = read(d, columns.ATTENTION_MASK)
            trained, attended = count(d), int(attention.sum())
            for key, value in (
                ("num_rows", len(attention)),
                ("num_trained_tokens", trained),
                ("num_sequence_tokens", attended),
            ):
                self.metrics.log_value((module_id, key), value, reduce="sum")
            self._add_stat(
                module_id, "trained_token_frac", trained / attended, attended
            )

    def _log_advantages(self, module_id: str, data: dict[str, Any]) -> None:
        """Log advantages, and the mismatch unless the first pass measures it."""
        trained = count(data)
        if not trained:
            return
        advantages = data[Columns.ADVANTAGES][trained_places(data)]
        self._add_histogram_values(module_id, "advantages", advantages)
        magnitude = advantages.abs().mean()
        self._add_stat(module_id, "advantage_abs_mean", magnitude, trained)
        if not self._mismatch_in_first_pass and not self._is_critic(module_id):
            self._add_mismatch_stats(module_id, data[Columns.ACTION_LOGP], data)


def _to_floats(values: Sequence[torch.Tensor | float]) -> list[float]:
    """Return scalars as floats, those on a device with one transfer."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    floats = torch.stack([t.double() for t in tensors]).tolist() if tensors else []
    read_back = iter(floats)
    read_back = iter(
        torch.stack([t.double() for t in tensors]).tolist() if tensors else []
    )
    return [
        next(read_back) if isinstance(v, torch.Tensor) else float(v) for v in values
    ]


def explained_variance(stats: dict[str, float]) -> float | None:
    """Return the share of the value targets' variance that the critic explains.

    Args:
        stats: Means over all trained tokens of an update, as accumulated above.

    Returns:
        1 - Var(error) / Var(target), or None where targets do not vary.
    """
    # E[x^2] - E[x]^2; both means are accumulated in float64.
    variance = stats["value_target_square"] - stats["value_target_mean"] ** 2
    if variance <= 1e-12:
        return None
    error = stats["value_error_square"] - stats["value_error_mean"] ** 2
    return 1.0 - error / variance
