"""Losses per token as pure functions, and their aggregation.

Tensors in, tensors out; nothing here knows Ray or environments.
"""

from rllib_llm.losses.aggregation import (
    LOSS_AGGREGATIONS,
    denominator,
    token_weights,
    weighted_loss,
)
from rllib_llm.losses.importance_correction import (
    TIS_LEVELS,
    MismatchWeights,
    mismatch_weights,
)
from rllib_llm.losses.kl import (
    KL_ESTIMATORS,
    approx_kl,
    kl_k1,
    kl_k2,
    kl_k3,
    kl_penalty,
)
from rllib_llm.losses.logprobs import token_logps_and_entropy
from rllib_llm.losses.message_ratios import message_log_ratios, sequential_factors
from rllib_llm.losses.surrogate import (
    MAX_LOG_RATIO,
    clipped_policy_loss,
    clipped_surrogate,
    entropy_bonus,
    negative_log_likelihood,
)
from rllib_llm.losses.value_losses import VALUE_LOSSES, critic_loss

__all__ = [
    "KL_ESTIMATORS",
    "LOSS_AGGREGATIONS",
    "MAX_LOG_RATIO",
    "TIS_LEVELS",
    "VALUE_LOSSES",
    "MismatchWeights",
    "approx_kl",
    "clipped_policy_loss",
    "clipped_surrogate",
    "critic_loss",
    "denominator",
    "entropy_bonus",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "message_log_ratios",
    "mismatch_weights",
    "negative_log_likelihood",
    "sequential_factors",
    "token_logps_and_entropy",
    "token_weights",
    "weighted_loss",
]
