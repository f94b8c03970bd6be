"""Checks of the settings of the reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def check_reference(config: LLMConfig) -> None:
    """Refuse settings of the reference that contradict each other or do nothing.

    Raises:
        ConfigError: With the setting, the rule, and the remedy.
    """
    if config.ref_kl_in == "reward" and config.ref_kl_coeff and not config.use_critic:
        raise ConfigError(
            "ref_kl_in='reward' subtracts the penalty from every token's reward, which "
            "only token-level advantages (LLMPPO) use. Use ref_kl_in='loss'."
        )
    in_loss = config.ref_kl_in == "loss" and config.ref_kl_coeff
    if in_loss and config.ref_kl_estimator == "k1":
        raise ConfigError(
            "ref_kl_estimator='k1' in the loss has an expected gradient of zero, so it "
            "would do nothing. Use 'k2' or 'k3', or ref_kl_in='reward'."
        )
    if config.ref_kl_estimator != "k3":
        why = "it bounds 'k3', which grows exponentially. Leave it out."
        refuse_without_effect(config, ("ref_kl_clip",), why)
    if not config.uses_reference:
        why = (
            "nothing reads a reference. Set ref_kl_coeff above 0, choose a loss that "
            "reads one, or leave it out."
        )
        refuse_without_effect(config, ("ref_model",), why)
    if config.ref_kl_target is not None and config.ref_kl_coeff == 0:
        raise ConfigError(
            "ref_kl_target adapts ref_kl_coeff by factors, so ref_kl_coeff must start "
            "above 0, e.g. 0.01."
        )
