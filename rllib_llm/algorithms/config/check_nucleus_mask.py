"""Checks of ``generation(mask_top_p=...)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.check_pictures import reads_pictures
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

_ALGORITHMS = ("GRPO", "LLMPPO")


def check_nucleus_mask(config: LLMConfig) -> None:
    """Refuse a nucleus mask where sampler and Learner would not both apply it.

    Raises:
        ConfigError: With the setting, the rule, and the remedy.
    """
    if config.mask_top_p is None:
        why = "there is no mask policy. Set mask_top_p, e.g. 0.9, or leave it out."
        refuse_without_effect(config, ("mask_update_iters",), why)
        return
    name = getattr(config.algo_class, "__name__", "")
    if name not in _ALGORITHMS:
        raise ConfigError(
            f"generation.mask_top_p={config.mask_top_p}: {name} has no nucleus mask. "
            f"Use {' or '.join(_ALGORITHMS)}, or leave it out."
        )
    for setting, value, why in _obstacles(config):
        raise ConfigError(
            f"generation.mask_top_p={config.mask_top_p} does not go with "
            f"{setting}={value!r}: {why}. Change it, or leave mask_top_p out."
        )


def _obstacles(config: LLMConfig) -> list[tuple[str, object, str]]:
    """Return the settings that do not carry the mask: name, value, reason."""
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    runner = config.env_runner_cls
    is_stock = runner is not None and not issubclass(runner, LLMEnvRunner)
    engine, head, model = config.generation_engine, config.action_head, config.lm_model
    drafted = config.num_speculative_tokens
    obstacles = [
        (engine != "torch", "generation.engine", engine, "only 'torch' applies it"),
        (
            drafted not in (0, type(config)().num_speculative_tokens),
            "generation.num_speculative_tokens",
            drafted,
            "with it the engine computes one token per pass",
        ),
        (head != "generate", "generation.head", head, "no tokens are sampled"),
        (is_stock, "env_runner_cls", runner, "only LLMEnvRunner applies it"),
        (
            bool(config.lm_lora),
            "language_model.lora",
            config.lm_lora,
            "the mask policy is a copy of a whole model",
        ),
        (
            bool(config.sharding),
            "learners.sharding",
            config.sharding,
            "the mask policy is not sharded",
        ),
        (
            reads_pictures(config),
            "language_model.model",
            model,
            "the mask policy reads text alone",
        ),
    ]
    return [(name, value, why) for holds, name, value, why in obstacles if holds]
