"""Statistics over trained tokens that every policy-gradient learner reports."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns

from rllib_llm import columns

# Sums from which the explained variance is made; not metrics themselves.
INTERMEDIATE_STATS = ("value_target_square", "value_error_mean", "value_error_square")


@torch.no_grad()
def add_token_stats(
    learner: Any,
    module_id: str,
    logp: torch.Tensor,
    batch: dict[str, Any],
    *,
    clip_low: float,
    clip_high: float,
) -> None:
    """Accumulate ratio, clipping, KL and critic statistics of one micro-batch.

    Args:
        learner: A learner with :class:`LLMLearnerMixin`.
        module_id: Whose statistics these are.
        logp: Log-probabilities under the current policy. [B, T]
        batch: The micro-batch.
        clip_low: Lower clip range, to count clipped tokens.
        clip_high: Upper clip range.
    """
    mask = batch[Columns.LOSS_MASK]
    trained = int(mask.sum())
    log_ratio = (logp - batch[Columns.ACTION_LOGP])[mask]
    ratio = log_ratio.exp()
    advantages = batch[Columns.ADVANTAGES][mask]
    clipped = torch.where(
        advantages > 0, ratio > 1.0 + clip_high, ratio < 1.0 - clip_low
    )
    for key, value in (
        # k3 of KL(old || new): r - 1 - log r, tokens sampled from the old policy.
        ("approx_kl_k3", (ratio - 1.0 - log_ratio).mean()),
        ("clip_frac", clipped.float().mean()),
        ("ratio_mean", ratio.mean()),
    ):
        learner._add_stat(module_id, key, float(value), trained)
    if columns.VALUES in batch:
        targets = batch[Columns.VALUE_TARGETS][mask]
        error = targets - batch[columns.VALUES][mask]
        for key, value in (
            ("value_target_mean", targets.mean()),
            ("value_target_square", targets.square().mean()),
            ("value_error_mean", error.mean()),
            ("value_error_square", error.square().mean()),
        ):
            learner._add_stat(module_id, key, float(value), trained)


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
