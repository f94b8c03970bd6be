"""PromptSearch: sample, change the texts before the prompts, update no weights."""

from __future__ import annotations

from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.prompt_search.prompt_search_config import PromptSearchConfig


class PromptSearch(LLMAlgorithm):
    """Learning from texts with frozen weights (cf. arXiv:2510.08191, 2303.11366).

    Each iteration samples groups, and the component ``rollouts.prompt_text`` changes
    the texts that later episodes read. The policy stays as it is.
    """

    config: PromptSearchConfig

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> PromptSearchConfig:
        return PromptSearchConfig()

    @property
    @override(LLMAlgorithm)
    def policy_waits(self) -> bool:
        """True: nothing is trained."""
        return True
