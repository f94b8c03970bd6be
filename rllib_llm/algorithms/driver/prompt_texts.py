"""Texts before first messages: changed after sampling, sent to evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.driver.assistants import AsksAssistants
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.assistants.answers import text_of
from rllib_llm.assistants.text_questions import text_questions
from rllib_llm.data.added_texts import TextSource
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import TurnTable

if TYPE_CHECKING:
    from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.prompt_texts.asked import PromptText

Sources = Mapping[str | None, TextSource]


class ChangesPromptTexts(AsksAssistants):
    """Mixin of algorithms whose ``rollouts.prompt_text`` changes by what is sampled.

    Put it before the Algorithm class in the bases.
    """

    # Of LLMAlgorithm.
    _driver_components: DriverComponents

    def change_prompt_texts(self, episodes: SampledEpisodes) -> None:
        """Let each component read its environment's episodes; log its numbers."""
        for environment, table in self._driver_components.tables_of_texts(episodes):
            text = self._driver_components.prompt_text_of(environment)
            answers = self._texts_about(text, table)
            key = ("prompt_text",) if environment is None else (environment,)
            for name, value in text.observe(table, answers).items():
                self.metrics.log_value((*key, name), value, window=1)

    def _texts_about(self, text: PromptText, table: TurnTable) -> list[str | None]:
        """Return the texts that the component's assistant writes."""
        asked = text.asked(table)
        if not asked:
            return []
        assert text.of is not None  # it asks nobody without one
        assistant = self._assistants[text.of]
        answers = self._answers(assistant, text_questions(assistant, asked))
        texts = [text_of(answer.text, assistant.parse) for answer in answers]
        self._log_answers(assistant, answers, texts)
        return texts

    @override(Algorithm)
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate with the texts as they are now."""
        group = self.eval_env_runner_group
        sources = self._driver_components.shared_texts()
        if sources and group is not None:
            send = UseTexts(sources)
            if group.local_env_runner is not None:
                send(group.local_env_runner)
            call_runners(group, send, limit=self.config.call_limit, version=None)
        return super().evaluate(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class UseTexts:
    """Call that gives texts to an EnvRunner of evaluation.

    Attributes:
        sources: The texts of each environment, by its name.
    """

    sources: Sources

    def __call__(self, runner: LLMEnvRunner) -> None:
        """Let the EnvRunner's own tasks have the texts."""
        runner.text_sources = self.sources
