"""Token annotations of transcripts by the Learner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.rllib_bases import RLlibLearner
from rllib_llm.transcripts.annotations import ANNOTATIONS, compact, dumps

if TYPE_CHECKING:
    from rllib_llm.types import Episode

# Indices of a turn: of its episode, of its agent, and among the agent's turns.
_Key = tuple[int, int, int]


class TokenAnnotationsMixin(RLlibLearner):
    """Records the token columns of annotated episodes in the last epoch.

    The Learner logs them as a series of JSON strings, one per episode, which
    TranscriptCollector writes into the transcripts on the driver. An update without
    annotated episodes logs nothing.
    """

    if TYPE_CHECKING:

        def _is_critic(self, module_id: str) -> bool: ...  # of LearnerStats

    def _begin_annotations(self, episodes: Sequence[Any]) -> None:
        """Start the annotations of an update."""
        # The columns' MULTI_AGENT_EPISODE_INDEX counts all episodes in this order.
        self._annotated = {
            i: e for i, e in enumerate(episodes) if episode_data(e).annotates_tokens
        }
        self._token_annotations: dict[_Key, dict[str, np.ndarray]] = defaultdict(dict)

    def _annotate_tokens(
        self, module_id: str, part: dict[str, Any], fwd_out: dict[str, Any]
    ) -> None:
        """Record the columns of annotated rows; later epochs overwrite earlier ones."""
        if not self._annotated:
            return
        joint = part[columns.MULTI_AGENT_EPISODE_INDEX].cpu().numpy()
        rows = np.flatnonzero(np.isin(joint, list(self._annotated)))
        if not rows.size:
            return
        if self._is_critic(module_id):
            tensors = {"value": part[columns.VALUES]}
        else:
            tensors = _of_policy(part, fwd_out)
        arrays = {k: v.detach()[rows].float().cpu().numpy() for k, v in tensors.items()}
        agents = part[columns.AGENT_INDEX].cpu().numpy()
        turn_ids = part[columns.TURN_IDS].cpu().numpy()
        for place, row in enumerate(rows):
            number = int(joint[row])
            for turn in np.unique(turn_ids[row][turn_ids[row] >= 0]):
                key = (number, int(agents[row]), int(turn))
                if self._sees_all_agents(module_id):
                    key = (number, *_turn_order(self._annotated[number])[int(turn)])
                here = turn_ids[row] == turn
                for name, values in arrays.items():
                    self._token_annotations[key][name] = values[place][here]

    def _sees_all_agents(self, module_id: str) -> bool:
        central = self.config.critic_view == "central"
        return central and self._is_critic(module_id)

    def _log_annotations(self) -> None:
        """Log the annotations, one string per episode."""
        turns: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for (number, agent, turn), arrays in sorted(self._token_annotations.items()):
            rounded = {name: compact(values) for name, values in arrays.items()}
            turns[number].append({"agent": agent, "index": turn, **rounded})
        for number, of_episode in turns.items():
            note = {"episode": self._annotated[number].id_, "tokens": of_episode}
            self.metrics.log_value(
                (ALL_MODULES, ANNOTATIONS), dumps(note), reduce="item_series"
            )
        self._begin_annotations(())


def _of_policy(part: dict[str, Any], fwd_out: dict[str, Any]) -> dict[str, Any]:
    scores, old = fwd_out[Columns.ACTION_DIST_INPUTS], part[Columns.ACTION_LOGP]
    tensors = {
        "trained": part[Columns.LOSS_MASK],
        "advantage": part[Columns.ADVANTAGES],
        "old_logp": old,
        "gap": old - part[columns.BEHAVIOUR_LOGP],
        "ratio": (scores[..., 0].detach() - old).exp(),
        "entropy": scores[..., 1],
    }
    if columns.VALUES in part:
        tensors["value"] = part[columns.VALUES]
    return tensors


def _turn_order(episode: Episode) -> list[tuple[int, int]]:
    """Return agent and index of every turn, in the order of a central critic's rows."""
    turns = [
        (turn.env_t, episode_data(part).agent_index, index)
        for part in agent_episodes(episode)
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN))
    ]
    return [(agent, index) for _, agent, index in sorted(turns)]
