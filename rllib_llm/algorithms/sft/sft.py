"""SFT: supervised fine-tuning on a scripted expert's episodes or on data files."""

from __future__ import annotations

import dataclasses
from typing import Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.sft.sft_config import SFTConfig
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.stored_episodes import conversation_episode, next_stored


class SFT(LLMAlgorithm):
    """Negative log-likelihood of demonstrated turns (Ouyang et al. 2022, step 1).

    Each iteration the expert plays ``episodes_per_iteration`` new training tasks; with
    ``data.files`` that many stored conversations are read instead. With
    ``rollouts.prompt_text`` demonstrations read the texts that earlier ones wrote.
    """

    config: SFTConfig

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> SFTConfig:
        return SFTConfig()

    @override(LLMAlgorithm)
    def setup(self, config: SFTConfig) -> None:
        self._conversations = config.stored_rows(parse_row)
        super().setup(config)

    @override(LLMAlgorithm)
    def collect(self) -> list[Any]:
        """Return the next demonstrations or stored conversations; count their turns."""
        if self._conversations is None:
            episodes = self._demonstrated()
        else:
            episodes = next_stored(self, self._conversations, conversation_episode)
        # Learning-rate schedules count turns, sampled or demonstrated.
        self.metrics.log_value(
            (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME),
            sum(map(len, episodes)),
            reduce="lifetime_sum",
            with_throughput=True,
        )
        return episodes

    def _demonstrated(self) -> list[Any]:
        """Return episodes of the expert on the next tasks; let texts change by them."""
        from rllib_llm.offline.expert_episodes import demonstrated_episodes

        config = self.config
        # By seed alone, as the section sft draws them.
        tasks = [
            dataclasses.replace(task, options={"split": "train"})
            for task in self._task_source.next_groups(config.episodes_per_iteration)
        ]
        if config.prompt_text is not None:
            tasks = self._driver_components.assign(tasks, self.iteration)
        episodes = demonstrated_episodes(config, tasks, config.mistake_rate)
        if config.prompt_text is not None:
            self.change_prompt_texts(SampledEpisodes(episodes))
        return episodes
