"""Distribution of episodes over several Learners."""

from __future__ import annotations

import dataclasses
from typing import Any

from ray.rllib.core.learner.training_data import TrainingData

from rllib_llm.data.episode_data import num_tokens


@dataclasses.dataclass
class LLMTrainingData(TrainingData):
    """Training data that is sharded by whole episodes, balanced by tokens.

    RLlib's sharder splits episodes to balance time steps; a part of an episode loses
    its ``custom_data`` and so its advantages.
    """

    def shard(
        self, num_shards: int, len_lookback_buffer: int | None = None, **kwargs: Any
    ) -> list[tuple[TrainingData, dict[str, Any]]]:
        """Assign the longest episodes first, each to the shard with the fewest tokens.

        Raises:
            ValueError: If there are fewer episodes than shards.
        """
        if len(self.episodes) < num_shards:
            raise ValueError(
                f"{len(self.episodes)} episodes cannot feed {num_shards} Learners. "
                "Raise episodes_per_iteration or lower num_learners."
            )
        shards: list[list[Any]] = [[] for _ in range(num_shards)]
        load = [0] * num_shards
        # Longest processing time first: close to balanced, and deterministic.
        by_length = sorted(self.episodes, key=lambda e: -num_tokens(e))
        for episode in by_length:
            lightest = load.index(min(load))
            shards[lightest].append(episode)
            load[lightest] += num_tokens(episode)
        return [(LLMTrainingData(episodes=s), {}) for s in shards]
