"""Check of ``loss_mask_pattern``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.errors import ConfigError
from rllib_llm.rewards.text_features import check_pattern

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def validate_loss_mask(config: LLMConfig) -> None:
    """Check a policy's pattern of tokens that are not trained.

    Raises:
        ConfigError: If the pattern is no regular expression, or if something needs the
            tokens that it may leave out.
    """
    pattern = config.loss_mask_pattern
    if pattern is None:
        return
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise ConfigError(f"training.loss_mask_pattern: {error}") from error
    needs = {
        "head='score' trains whole actions": config.action_head == "score",
        "the critic's returns need the rewards of all sampled tokens": (
            config.use_critic
        ),
        "the scorer reads the last trained token of each turn": (
            config.uses_scorer and config.action_labels is None
        ),
    }
    for why, holds in needs.items():
        if holds:
            raise ConfigError(
                f"training.loss_mask_pattern={pattern!r}: {why}. Leave the pattern "
                "out, or use GRPO, SFT or Pref without these."
            )
