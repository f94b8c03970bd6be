"""Episodes as a reward model sees them: whole conversations, up to the last token."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data import columns
from rllib_llm.offline.conversation_files import StoredPair
from rllib_llm.offline.stored_episodes import conversation_episode


class FinishedEpisode(WholeEpisode):
    """An episode whose last turn ends with all that the template writes after it.

    So the last token of its row is that of ``apply_chat_template(messages)``, where
    classifiers of transformers read the score.

    Args:
        episode: The SingleAgentEpisode.
        renderer: Renders conversations.
        success: Whether it solved its task; None: as recorded.
    """

    def __init__(
        self, episode: Any, renderer: ChatRenderer, success: bool | None = None
    ) -> None:
        super().__init__(episode, success=success)
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

    @override(WholeEpisode)
    def get_extra_model_outputs(self, key: str) -> Any:
        """Return the Turn records, the last one with the conversation's end."""
        if key == columns.TURN:
            return self._turns
        return super().get_extra_model_outputs(key)


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
