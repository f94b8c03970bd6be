"""SFT: supervised fine-tuning on a scripted expert's episodes or on data files."""

from __future__ import annotations

from typing import Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.sft.sft_config import SFTConfig
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.stored_episodes import conversation_episode, next_stored


class SFT(LLMAlgorithm):
    """Negative log-likelihood of demonstrated turns (Ouyang et al. 2022, step 1).

    Each iteration the expert plays ``episodes_per_iteration`` new training tasks; with
    ``data.files`` that many stored conversations are read instead.
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
        """Return episodes of the expert on the next tasks."""
        from rllib_llm.offline.sft_before_rl import demonstrated_episodes

        config = self.config
        tasks = self._task_source.next_groups(config.episodes_per_iteration)
        seeds = [task.seed for task in tasks]
        return demonstrated_episodes(config, seeds, config.mistake_rate)
