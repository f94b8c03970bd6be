"""The mathematics of training: pure functions, tensors in and tensors out.

Nothing here knows Ray or environments. Advantages and normalisers are numpy, computed
once per batch; losses, KL and distributions are torch, differentiated.
"""

from rllib_llm.dependency import (
    TOPOLOGIES,
    DependencyGraph,
    dependency_graph,
)
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
from rllib_llm.objectives.allocation import (
    ALLOCATIONS,
    SHAPINGS,
    allocate_rewards,
    gated_rewards,
    influence_rewards,
    persuasion_bonuses,
    shaped_rewards,
    shapley_values,
    team_and_local_rewards,
)
from rllib_llm.objectives.distributions import token_logps_and_entropy
from rllib_llm.objectives.fidelity import (
    GradientNorms,
    rank_correlation,
    summarise_gradient_norms,
)
from rllib_llm.objectives.group_credit import (
    MESSAGE_GROUPS,
    align_invocations,
    broadcast_advantages,
    hierarchical_keys,
    message_group_advantages,
    message_group_keys,
)
from rllib_llm.objectives.joint_gae import message_gae, two_level_gae
from rllib_llm.objectives.keys import joint_keys
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
    clipped_surrogate,
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
from rllib_llm.objectives.role_baselines import RoleBaselines, per_player_advantages
from rllib_llm.objectives.sequential import (
    message_log_ratios,
    sequential_factors,
)
from rllib_llm.objectives.tree_credit import (
    leaf_means,
    marginal_rewards,
    sibling_advantages,
    tree_returns,
)

__all__ = [
    "ALLOCATIONS",
    "BASELINES",
    "KL_ESTIMATORS",
    "LOSS_AGGREGATIONS",
    "MAX_LOG_RATIO",
    "MESSAGE_GROUPS",
    "SCALES",
    "SHAPINGS",
    "TIS_LEVELS",
    "TOPOLOGIES",
    "DependencyGraph",
    "GradientNorms",
    "MismatchWeights",
    "RoleBaselines",
    "align_invocations",
    "allocate_rewards",
    "approx_kl",
    "broadcast_advantages",
    "clipped_policy_loss",
    "clipped_surrogate",
    "denominator",
    "dependency_graph",
    "entropy_bonus",
    "gated_rewards",
    "group_advantages",
    "group_reward_std",
    "hierarchical_keys",
    "influence_rewards",
    "joint_keys",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "leaf_means",
    "marginal_rewards",
    "masked_moments",
    "message_gae",
    "message_group_advantages",
    "message_group_keys",
    "message_log_ratios",
    "mismatch_weights",
    "negative_log_likelihood",
    "per_player_advantages",
    "persuasion_bonuses",
    "rank_correlation",
    "sequential_factors",
    "shaped_rewards",
    "shapley_values",
    "sibling_advantages",
    "summarise_gradient_norms",
    "team_and_local_rewards",
    "token_gae",
    "token_logps_and_entropy",
    "token_weights",
    "tree_returns",
    "two_level_gae",
    "value_loss",
    "weighted_loss",
    "whiten",
    "whiten_with_moments",
    "zero_variance_groups",
]
