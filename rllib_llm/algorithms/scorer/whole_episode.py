"""Episodes as a model that scores them sees them: all of their turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy, Turn


class WholeEpisode:
    """An episode of which every turn is scored, whatever a policy is trained on.

    It has what the Learner's pipeline reads of a SingleAgentEpisode, and keeps the
    rewards of now: those of the episode may be replaced by scores later.

    Args:
        episode: The SingleAgentEpisode.
        module_id: RLModule that gets its rows; None: as recorded.
        success: Whether it solved its task; None: as recorded.
        rewards: Reward, or label, of each turn; None: as recorded. [H]
        prefix: Token ids before the conversation, which the policy has not read.
    """

    def __init__(
        self,
        episode: Any,
        module_id: str | None = None,
        success: bool | None = None,
        rewards: np.ndarray | None = None,
        prefix: Sequence[int] = (),
    ) -> None:
        self._episode, data = episode, episode_data(episode)
        self._prefix = np.asarray(prefix, np.int32)
        data = dataclasses.replace(
            data,
            masked_turns=frozenset(),
            stop_policy=StopPolicy.TRAIN,
            success=data.success if success is None else success,
            is_annotated=False,
        )
        given = episode.get_rewards() if rewards is None else rewards
        self._rewards = np.array(given, np.float64)
        self.custom_data = {**episode.custom_data, columns.EPISODE_DATA: data}
        self.id_ = episode.id_
        self.module_id = module_id or episode.module_id
        self.is_truncated = episode.is_truncated

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self._episode)

    def env_steps(self) -> int:
        """Return the number of turns."""
        return len(self)

    def get_rewards(self) -> np.ndarray:
        """Return the reward of each turn. [H]"""
        return self._rewards

    def get_infos(self) -> list[Any]:
        """Return the infos of the reset and of each turn. [H + 1]"""
        infos: list[Any] = self._episode.get_infos()
        return infos

    def get_extra_model_outputs(self, key: str) -> Any:
        """Return what was recorded of each turn."""
        recorded = self._episode.get_extra_model_outputs(key)
        if not len(self._prefix):
            return recorded
        begun: set[int] = set()  # conversations, each of which is a row of its own
        turns = []
        for turn in recorded:
            begins = not turn.extends or turn.conversation not in begun
            begun.add(turn.conversation)
            turns.append(self._after_prefix(turn) if begins else turn)
        return turns

    def _after_prefix(self, turn: Turn) -> Turn:
        """Return a turn that begins a row, with the prefix before its prompt."""
        ids = np.concatenate([self._prefix, turn.prompt_ids])
        images = tuple(ref.moved(len(self._prefix)) for ref in turn.images)
        return dataclasses.replace(turn, prompt_ids=ids, images=images)
