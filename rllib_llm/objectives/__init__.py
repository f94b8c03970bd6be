"""The mathematics of training: pure functions, tensors in and tensors out.

Nothing here knows Ray or environments. Advantages and normalisers are numpy, computed
once per batch; losses, KL and distributions are torch, differentiated.
"""

from rllib_llm.objectives.advantages import (
    BASELINES,
    SCALES,
    group_advantages,
    group_reward_std,
    masked_moments,
    token_gae,
    whiten,
    whiten_with_moments,
    zero_variance_groups,
)
from rllib_llm.objectives.distributions import token_logps_and_entropy
from rllib_llm.objectives.kl import (
    KL_ESTIMATORS,
    approx_kl,
    kl_k1,
    kl_k2,
    kl_k3,
    kl_penalty,
)
from rllib_llm.objectives.losses import (
    MAX_LOG_RATIO,
    clipped_policy_loss,
    entropy_bonus,
    negative_log_likelihood,
    value_loss,
    weighted_loss,
)
from rllib_llm.objectives.mismatch import (
    TIS_LEVELS,
    MismatchWeights,
    mismatch_weights,
)
from rllib_llm.objectives.normalisers import (
    LOSS_AGGREGATIONS,
    denominator,
    token_weights,
)

__all__ = [
    "BASELINES",
    "KL_ESTIMATORS",
    "LOSS_AGGREGATIONS",
    "MAX_LOG_RATIO",
    "SCALES",
    "TIS_LEVELS",
    "MismatchWeights",
    "approx_kl",
    "clipped_policy_loss",
    "denominator",
    "entropy_bonus",
    "group_advantages",
    "group_reward_std",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "masked_moments",
    "mismatch_weights",
    "negative_log_likelihood",
    "token_gae",
    "token_logps_and_entropy",
    "token_weights",
    "value_loss",
    "weighted_loss",
    "whiten",
    "whiten_with_moments",
    "zero_variance_groups",
]
