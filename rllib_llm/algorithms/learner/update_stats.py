"""Counters and means over the steps of one update, for all Learners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.policy.sample_batch import MultiAgentBatch
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.token_stats import (
    INTERMEDIATE_STATS,
    add_mismatch_stats,
    explained_variance,
)
from rllib_llm.callbacks.histograms import log_histograms
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.distributed import sum_by_key


class LearnerStats:
    """Weighted means and maxima over micro-batches, logged once per update.

    Means are over the tokens of all Learners. Numbers stay tensors until the end of the
    update, so that collecting one does not wait for the device. (A micro-batch waits
    once, to find its trained tokens.)
    """

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

    def _add_stat(self, module_id: str, key: str, value: Any, weight: float) -> None:
        """Accumulate a weighted mean over the micro-batches of one update."""
        if isinstance(value, torch.Tensor):
            value = value.detach()
        stats = self._stats[module_id]
        stats[key] = stats[key] + value * weight
        stats[key + "/weight"] += weight

    def _max_stat(self, module_id: str, key: str, value: Any) -> None:
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
        real = part[columns.ATTENTION_MASK]
        share = 1.0 - real.sum() / real.numel()
        self._add_stat(module_id, "padding_frac", share, real.numel())

    def _means(self) -> dict[str, dict[str, float]]:
        """Return the means over the tokens of all Learners, by module."""
        sums = {
            f"{module_id}\t{key}": value
            for module_id, stats in self._stats.items()
            for key, value in stats.items()
        }
        tensors = [
            torch.as_tensor(v, dtype=torch.float64, device=self._device)
            for v in sums.values()
        ]
        values = torch.stack(tensors).tolist() if tensors else []
        means: dict[str, dict[str, float]] = defaultdict(dict)
        totals = sum_by_key(dict(zip(sums, values, strict=True)), self._device)
        for name, total in totals.items():
            weight = totals.get(name + "/weight")
            if weight:
                module_id, key = name.split("\t")
                means[module_id][key] = total / weight
        return means

    def _log_stats(self) -> None:
        for module_id, means in self._means().items():
            if "value_target_mean" in means:
                explained = explained_variance(means)
                for key in INTERMEDIATE_STATS:
                    del means[key]
                if explained is not None:
                    means["vf_explained_var"] = explained
            for key, value in means.items():
                self.metrics.log_value((module_id, key), value, window=1)
        for key, values in self._maxima.items():
            largest = max(map(float, values))
            self.metrics.log_value(key, largest, reduce="max", window=1)
        for (module_id, name), parts in self._histogram_values.items():
            values = torch.cat(parts).cpu().numpy()
            log_histograms(self.metrics, {name: values}, module_id)
        self._reset_stats()
        for module_id in self.module.keys():
            self.metrics.log_value(
                (module_id, "nan_steps_skipped"), self._nan_steps, window=1
            )

    def _log_lag(self, episodes: Sequence[Any]) -> None:
        """Log how many updates old the weights are that sampled each turn."""
        lags: dict[str, list[int]] = defaultdict(list)
        for part in (p for e in episodes for p in agent_episodes(e)):
            module_id = part.module_id or DEFAULT_MODULE_ID
            for turn in part.get_extra_model_outputs(columns.TURN):
                # RLlib has counted this update already.
                lags[module_id].append(self._weights_seq_no - 1 - turn.weights_seq_no)
        for module_id, values in lags.items():
            lag = sum(values) / len(values)
            self._add_stat(module_id, "policy_staleness_mean", lag, len(values))

    def _log_batch(self, data: dict[str, dict[str, Any]]) -> None:
        for module_id, d in data.items():
            mask, attention = d[Columns.LOSS_MASK], d[columns.ATTENTION_MASK]
            trained, attended = int(mask.sum()), int(attention.sum())
            for key, value in (
                ("num_rows", len(mask)),
                ("num_trained_tokens", trained),
                ("num_sequence_tokens", attended),
            ):
                self.metrics.log_value((module_id, key), value, reduce="sum")
            self._add_stat(
                module_id, "trained_token_frac", trained / attended, attended
            )
            if not trained:
                continue
            advantages = d[Columns.ADVANTAGES][mask]
            self._add_histogram_values(module_id, "advantages", advantages)
            magnitude = advantages.abs().mean()
            self._add_stat(module_id, "advantage_abs_mean", magnitude, trained)
            if not self._mismatch_in_first_pass and not self._is_critic(module_id):
                add_mismatch_stats(self, module_id, d[Columns.ACTION_LOGP], d)
