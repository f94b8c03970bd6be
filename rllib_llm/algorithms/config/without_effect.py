"""Rejection of settings that would have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


# Settings of policy gradients: losses that compare or imitate texts have neither
# advantages, ratios nor values.
OF_POLICY_GRADIENTS = (
    "policy_loss",
    "loss_terms",
    "token_advantage_transforms",
    "shared_reward_fraction",
    "tis",
    "tis_clip",
    "is_mask_low",
    "is_mask_high",
    "is_sequence_mask_low",
    "is_sequence_mask_high",
    "old_logps",
    "ref_kl_coeff",
    "ref_kl_estimator",
    "ref_kl_clip",
    "ref_kl_in",
    "ref_kl_target",
    "critic_lr",
    "critic_warmup_iters",
    "gamma",
)


def refuse_without_effect(config: LLMConfig, names: tuple[str, ...], why: str) -> None:
    """Raise ConfigError if a setting was changed that nothing reads."""
    # Compared with a new config, because "was it given" is not recorded by RLlib.
    default = type(config)()
    for name in names:
        given, unchanged = getattr(config, name), getattr(default, name)
        # Tune's record of a run is JSON, from which tuples come back as lists.
        if isinstance(unchanged, tuple) and isinstance(given, list):
            unchanged = list(unchanged)
        if given != unchanged:
            raise ConfigError(f"{name}={given!r} would have no effect: {why}")
