"""Advantage estimation as pure numpy functions: GAE, group-relative, whitening.

They compute in float64, once per batch, and use neither Ray nor environments.
"""

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.fidelity import (
    GradientNorms,
    rank_correlation,
    summarise_gradient_norms,
)
from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.group_relative import (
    BASELINES,
    SCALES,
    group_advantages,
    group_reward_std,
    zero_variance_groups,
)
from rllib_llm.advantages.multi_agent_gae import message_gae, two_level_gae
from rllib_llm.advantages.multi_agent_groups import (
    MESSAGE_GROUPS,
    align_invocations,
    broadcast_advantages,
    hierarchical_keys,
    message_group_advantages,
    message_group_keys,
)
from rllib_llm.advantages.role_baselines import RoleBaselines, per_player_advantages
from rllib_llm.advantages.tree import (
    leaf_means,
    marginal_rewards,
    sibling_advantages,
    tree_returns,
)
from rllib_llm.advantages.whitening import masked_moments, whiten, whiten_with_moments

__all__ = [
    "BASELINES",
    "MESSAGE_GROUPS",
    "SCALES",
    "GradientNorms",
    "RoleBaselines",
    "align_invocations",
    "broadcast_advantages",
    "combined_keys",
    "group_advantages",
    "group_reward_std",
    "hierarchical_keys",
    "leaf_means",
    "marginal_rewards",
    "masked_moments",
    "message_gae",
    "message_group_advantages",
    "message_group_keys",
    "per_player_advantages",
    "rank_correlation",
    "sibling_advantages",
    "summarise_gradient_norms",
    "token_gae",
    "tree_returns",
    "two_level_gae",
    "whiten",
    "whiten_with_moments",
    "zero_variance_groups",
]
