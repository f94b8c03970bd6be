"""Episodes as a reward model sees them: whole conversations, up to the last token."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.offline.conversation_files import StoredPair
from rllib_llm.offline.stored_episodes import conversation_episode


class FinishedEpisode:
    """An episode whose last turn ends with all that the template writes after it.

    So the last token of its row is that of ``apply_chat_template(messages)``, where
    classifiers of transformers read the score. It has what the Learner's pipeline reads
    of a SingleAgentEpisode.

    Args:
        episode: The SingleAgentEpisode.
        renderer: Renders conversations.
        success: Whether it solved its task; None: as recorded.
    """

    def __init__(
        self, episode: Any, renderer: ChatRenderer, success: bool | None = None
    ) -> None:
        self._episode, data = episode, episode_data(episode)
        *earlier, last = episode.get_extra_model_outputs(columns.TURN)
        tail = renderer.closing(int(last.action_ids[-1]))
        self._turns = [
            *earlier,
            dataclasses.replace(
                last,
                action_ids=np.append(last.action_ids, np.asarray(tail, np.int32)),
                action_logps=np.append(
                    last.action_logps, np.zeros(len(tail), np.float32)
                ),
            ),
        ]
        data = dataclasses.replace(
            data,
            # All of the conversation is scored, whatever a policy would be trained on.
            masked_turns=frozenset(),
            stop_policy=StopPolicy.TRAIN,
            success=data.success if success is None else success,
            is_annotated=False,
        )
        self.custom_data = {**episode.custom_data, columns.EPISODE_DATA: data}
        self.id_, self.module_id = episode.id_, episode.module_id
        self.is_truncated = episode.is_truncated

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self._episode)

    def env_steps(self) -> int:
        """Return the number of turns."""
        return len(self)

    def get_rewards(self) -> Any:
        """Return the reward of each turn. [H]"""
        return self._episode.get_rewards()

    def get_extra_model_outputs(self, key: str) -> Any:
        """Return the Turn records, the last one with the conversation's end."""
        if key == columns.TURN:
            return self._turns
        return self._episode.get_extra_model_outputs(key)


def finished_pair(
    pair: StoredPair, renderer: ChatRenderer, system_prompt: str | None = None
) -> PreferencePair:
    """Return a stored pair as finished episodes; the chosen one is a success."""
    sides = (
        FinishedEpisode(
            conversation_episode(side, renderer, system_prompt), renderer, is_chosen
        )
        for side, is_chosen in ((pair.chosen, True), (pair.rejected, False))
    )
    return PreferencePair(*sides)
