"""Evaluation of the initial policy, before the first iteration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rllib_llm.callbacks import result_keys
from rllib_llm.callbacks.histograms import without_histograms
from rllib_llm.modules.tiny import BUILT_MODELS
from rllib_llm.offline.random_policy import RandomPolicyResult, is_below
from rllib_llm.rllib_bases import RLlibAlgorithm
from rllib_llm.transcripts.collector import without_transcripts

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

_EVALUATION = "evaluation"


class EvaluatesFirst(RLlibAlgorithm):
    """Mixin that reports an evaluation of the initial policy in the first result.

    RL can lower the success that imitation reached, which later evaluations alone do
    not show. Put it before the Algorithm class in the bases.

    Attributes:
        is_evaluating_first: Whether that evaluation is running.
    """

    is_evaluating_first = False
    _first_evaluation: dict[str, Any] | None = None

    def step(self) -> dict[str, Any]:
        """Evaluate if nothing was trained yet, then train one iteration."""
        # A restored algorithm continues at a later iteration and does not repeat it.
        is_first = self.iteration == 0 and self.config.evaluates_first
        if is_first and self._first_evaluation is None:
            self._first_evaluation = self._evaluate_first()
        results = super().step()
        if is_first:
            results[result_keys.FIRST_EVALUATION] = self._first_evaluation
        return results

    def _evaluate_first(self) -> dict[str, Any]:
        self.is_evaluating_first = True
        try:
            results = {_EVALUATION: self.evaluate()}
        finally:
            self.is_evaluating_first = False
        # Numbers only: transcripts and histograms belong to iterations.
        numbers = without_histograms(without_transcripts(results))[_EVALUATION]
        first = {"env_runners": numbers.get("env_runners", {})}
        chance = RandomPolicyResult.of_model(self.config)
        if chance is not None:
            first["random_success_rate"] = chance.success_rate
            advice = imitation_advice(self.config, first, chance)
            if advice:
                first["advice"] = advice
                logger.warning(advice)
        return first


def imitation_advice(
    config: LLMConfig, first: dict[str, Any], chance: RandomPolicyResult
) -> str | None:
    """Return advice for an imitated policy that is worse than random play.

    Args:
        config: The run's config.
        first: The evaluation before training.
        chance: Random play on held-out tasks.

    Returns:
        One paragraph; None if it is not significantly worse.
    """
    success = result_keys.lookup(first, result_keys.SUCCESS)
    episodes = result_keys.lookup(first, "env_runners/num_episodes")
    if success is None or not episodes:
        return None
    if not is_below(round(success * episodes), round(episodes), chance):
        return None
    is_tiny = config.lm_model in BUILT_MODELS
    vocabulary = "language_model.tiny.vocab_size=320 and " if is_tiny else ""
    return (
        f"The imitation failed: held-out success after SFT is {success:.0%} "
        f"(n={episodes:.0f}), that of random play {chance.success_rate:.0%} "
        f"(n={chance.episodes}). Small models often cannot copy names that they never "
        f"saw: try {vocabulary}sft.observation_weight=0.2, then more "
        "sft.demonstrations or epochs (docs/troubleshooting.md)."
    )
