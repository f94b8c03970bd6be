"""Statistics over trained tokens that all policy-gradient Learners report."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.losses.importance_correction import mismatch_weights
from rllib_llm.losses.surrogate import MAX_LOG_RATIO

# Sums from which the explained variance is made; not metrics themselves.
INTERMEDIATE_STATS = ("value_target_square", "value_error_mean", "value_error_square")


@torch.no_grad()
def add_token_stats(
    learner: Any,
    module_id: str,
    logp: torch.Tensor,
    batch: dict[str, Any],
    clipped: torch.Tensor,
) -> None:
    """Accumulate ratio, clipping, KL and critic statistics of one micro-batch.

    Args:
        learner: A learner with :class:`LLMLearnerMixin`.
        module_id: Policy of the statistics.
        logp: Log-probabilities under the current policy. [B, T]
        batch: The micro-batch.
        clipped: Tokens on which a bound of the policy loss acted. bool [B, T]
    """
    mask = batch[Columns.LOSS_MASK]
    trained = int(mask.sum())
    log_ratio = (logp - batch[Columns.ACTION_LOGP])[mask]
    # As in the losses: one token that became impossible must not make means infinite.
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = bounded.exp()
    learner._add_histogram_values(module_id, "log_ratios", log_ratio)
    for key, value in (
        # k3 of KL(old || new): r - 1 - log r, tokens sampled from the old policy.
        ("approx_kl_k3", (ratio - 1.0 - bounded).mean()),
        ("clip_frac", clipped[mask].float().mean()),
        ("ratio_mean", ratio.mean()),
    ):
        learner._add_stat(module_id, key, value, trained)
    if learner.measures_mismatch:
        add_mismatch_stats(learner, module_id, logp, batch)
    if columns.VALUES in batch:
        if columns.VALUE_WEIGHTS in batch:  # only turns have values
            mask = batch[columns.VALUE_WEIGHTS] > 0
            trained = int(mask.sum())
            if not trained:
                return
        targets = batch[Columns.VALUE_TARGETS][mask]
        error = targets - batch[columns.VALUES][mask]
        for key, value in (
            ("value_target_mean", targets.mean()),
            ("value_target_square", targets.square().mean()),
            ("value_error_mean", error.mean()),
            ("value_error_square", error.square().mean()),
        ):
            learner._add_stat(module_id, key, value, trained)


@torch.no_grad()
def add_mismatch_stats(
    learner: Any, module_id: str, logp: torch.Tensor, batch: dict[str, Any]
) -> None:
    """Accumulate the train-inference mismatch of log-probabilities.

    Args:
        learner: A learner with :class:`LLMLearnerMixin`.
        module_id: Policy of the statistics.
        logp: Log-probabilities under the policy before this update. [B, T]
        batch: The batch, or one micro-batch.
    """
    mask = batch[Columns.LOSS_MASK]
    mismatch = (logp - batch[columns.BEHAVIOUR_LOGP])[mask].abs()
    learner._add_histogram_values(module_id, "train_inference_mismatches", mismatch)
    learner._add_stat(
        module_id, "train_inference_mismatch_mean", mismatch.mean(), len(mismatch)
    )
    learner._max_stat(module_id, "train_inference_mismatch_max", mismatch.max())


@torch.no_grad()
def correct_mismatch(
    learner: Any, module_id: str, batch: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Multiply the advantages of ``batch`` by importance weights.

    Both policy losses are linear in the advantages' scale, so this weights each token's
    policy loss and no other term.

    Args:
        learner: A learner with :class:`LLMLearnerMixin`.
        module_id: Policy of the batch.
        batch: Whole sequences if ``settings`` contain a level or band of sequences.
        settings: Keywords of
            :func:`rllib_llm.losses.importance_correction.mismatch_weights`.
    """
    mask = batch[Columns.LOSS_MASK]
    trained = int(mask.sum())
    if not trained:
        return
    correction = mismatch_weights(
        batch[Columns.ACTION_LOGP],
        batch[columns.BEHAVIOUR_LOGP],
        mask,
        batch[columns.EPISODE_INDEX],
        **settings,
    )
    batch[Columns.ADVANTAGES] = batch[Columns.ADVANTAGES] * correction.weights
    for key, value in (
        ("is_weight_mean", correction.weights),
        ("is_clipped_frac", correction.clipped),
        ("is_masked_frac", correction.dropped),
    ):
        learner._add_stat(module_id, key, value.sum() / trained, trained)
    learner._max_stat(module_id, "is_ratio_max", correction.ratio.max())


def explained_variance(stats: dict[str, float]) -> float | None:
    """Return the share of the value targets' variance that the critic explains.

    Args:
        stats: Means over all trained tokens of an update, as accumulated above.

    Returns:
        1 - Var(error) / Var(target), or None where targets do not vary.
    """
    variance = stats["value_target_square"] - stats["value_target_mean"] ** 2
    if variance <= 1e-12:
        return None
    error = stats["value_error_square"] - stats["value_error_mean"] ** 2
    return 1.0 - error / variance
