"""Configuration of PromptSearch."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.config.declarations import setting, state
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.without_effect import (
    OF_POLICY_GRADIENTS,
    refuse_without_effect,
)
from rllib_llm.errors import ConfigError

# Nothing is trained: neither a loss nor an optimiser, nor a selection of what to learn.
_UNREAD = (
    *OF_POLICY_GRADIENTS,
    "lr",
    "num_epochs",
    "minibatch_size",
    "weight_decay",
    "grad_clip",
    "grad_clip_by",
    "nan_policy",
    "loss_agg_mode",
    "loss_agg_constant",
    "loss_mask_pattern",
    "packing",
    "micro_batch_tokens",
    "head_chunk_tokens",
    "row_per_turn",
    "filters",
)


class PromptSearchConfig(LLMConfigMixin, AlgorithmConfig):
    """Configuration of :class:`PromptSearch`.

    Example:
        >>> config = (
        ...     PromptSearchConfig()
        ...     .environment("ground_rules-v0")
        ...     .rollouts(
        ...         episodes_per_iteration=64,
        ...         group_size=4,
        ...         prompt_text={"name": "memory", "text": "{task} go {reply}."},
        ...     )
        ... )
    """

    group_size = setting(4)
    use_critic = state(False)
    old_logps = setting("engine")

    def __init__(self, algo_class: type[Any] | None = None):
        if algo_class is None:
            from rllib_llm.algorithms.prompt_search.prompt_search import (
                PromptSearch as algo_class,
            )
        super().__init__(algo_class=algo_class)
        self._set_llm_defaults()

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        why = "PromptSearch updates no weights. Leave it out, or use GRPO."
        refuse_without_effect(self, _UNREAD, why)
        texts = [specs.prompt_text for specs in self.component_specs().values()]
        if not any(texts):
            raise ConfigError(
                "PromptSearch changes nothing without rollouts.prompt_text. Set it, "
                "e.g. to {name: memory}, or use another algorithm."
            )

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        # It holds the weights and their checkpoints, and is never asked to update.
        from rllib_llm.algorithms.sft.sft_learner import SFTTorchLearner

        return SFTTorchLearner
