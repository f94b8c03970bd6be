"""Configuration of SFT."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.config.data import DataSettings
from rllib_llm.algorithms.config.declarations import setting, state
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.without_effect import (
    OF_POLICY_GRADIENTS,
    refuse_without_effect,
)
from rllib_llm.components.registry import Spec, bind
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.schema import Fraction

# Nothing is sampled, so there is neither reward nor advantage, nor an old policy.
_SAMPLING_SETTINGS = (
    "group_size",
    "rewards",
    "reward_transforms",
    "filters",
    "curriculum",
    "fork",
    "candidates",
    "row_per_turn",
    "save_episodes",
    *OF_POLICY_GRADIENTS,
)


class SFTConfig(LLMConfigMixin, DataSettings, AlgorithmConfig):
    """Configuration of :class:`SFT`.

    Example:
        >>> config = (
        ...     SFTConfig()
        ...     .environment("frozen_lake-v0")
        ...     .rollouts(episodes_per_iteration=64)
        ...     .training(lr=1e-3, minibatch_size=8, mistake_rate=0.3)
        ... )
    """

    lr = setting(1e-3)
    # A setting of PPO's, which the package reads of every config.
    use_critic = state(False)
    old_logps = setting("engine")

    mistake_rate: Fraction = setting(
        0.0,
        """Share of the expert's turns that ``random_action`` plays instead, in [0, 1];
        all turns are imitated.""",
    )
    observation_weight: Fraction = setting(
        0.0,
        """Weight of prompt tokens relative to the expert's, in [0, 1]. With 0 they are
        not trained. Small models learn to copy names sooner with 0.1 to 0.2.""",
    )

    def __init__(self, algo_class: type[Any] | None = None):
        if algo_class is None:
            from rllib_llm.algorithms.sft.sft import SFT as algo_class
        super().__init__(algo_class=algo_class)
        self._set_llm_defaults()

    @override(LLMConfigMixin)
    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        why = "has no effect on SFT, which trains on demonstrations. Leave it out."
        return [(True, why)]

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        why = "SFT imitates and samples nothing. Leave it out, or use GRPO or LLMPPO."
        refuse_without_effect(self, _SAMPLING_SETTINGS, why)
        if self.stored_rows(parse_row) is not None:
            why = "data.files replaces the expert, and its mistakes. Leave it out."
            refuse_without_effect(self, ("mistake_rate",), why)
            why = (
                "data.files holds whole prompts, which stay as they are. Leave it out."
            )
            refuse_without_effect(self, ("prompt_text",), why)
        elif self.prompt_text is not None:
            self._validate_texts(self.prompt_text)
        if self.module_ids != (DEFAULT_MODULE_ID,):
            raise ConfigError(
                f"SFT trains one policy, {DEFAULT_MODULE_ID!r}, not "
                f"{', '.join(map(repr, self.module_ids))}. Leave .multi_agent() out: "
                "SFT imitates every agent's messages."
            )
        if self.action_head != "generate":
            raise ConfigError(
                f"head={self.action_head!r}: SFT imitates tokens. Use head='generate'."
            )

    def _validate_texts(self, spec: Spec) -> None:
        """Check texts before demonstrations, which no assistant is asked about."""
        writer = bind("prompt_text", spec).call.of
        if writer is not None:
            raise ConfigError(
                f"rollouts.prompt_text.of={writer!r}: SFT samples nothing and asks no "
                "assistants. Leave of out: the rule 'text' writes."
            )
        if self.mixture_members:
            raise ConfigError(
                f"rollouts.prompt_text={spec!r}: demonstrations of a mixture read no "
                "texts. Leave it out, or use one environment."
            )
        env = self.make_text_env()
        agents = agents_of(env)
        env.close()
        if agents is not None:
            raise ConfigError(
                f"rollouts.prompt_text: {self.env} has agents {', '.join(agents)}, "
                "whose demonstrations read no texts. Leave prompt_text out."
            )

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.sft.sft_learner import SFTTorchLearner

        return SFTTorchLearner
