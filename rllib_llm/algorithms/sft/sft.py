"""Configuration of the supervised stage; it has a Learner but no Algorithm yet."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.utils.annotations import override
from typing_extensions import Self

from rllib_llm.algorithms.llm_config import LLMConfigMixin


class SFTConfig(LLMConfigMixin, AlgorithmConfig):
    """Settings of :class:`SFTTorchLearner`."""

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class)
        self._set_llm_defaults()
        self.use_critic = False
        self.old_logps = "engine"

    @override(AlgorithmConfig)
    def training(self, **kwargs: Any) -> Self:
        """Set the shared training settings."""
        super().training(**self._llm_training(**kwargs))
        return self

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.sft.sft_learner import SFTTorchLearner

        return SFTTorchLearner
