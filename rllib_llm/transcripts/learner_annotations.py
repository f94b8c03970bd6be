"""What the Learner knew of each token of the episodes that transcripts show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.transcripts.annotations import ANNOTATIONS, compact, dumps

# Of a turn: number of the episode, of its agent, and of the turn among the agent's.
_Key = tuple[int, int, int]


class TokenAnnotationsMixin:
    """Keeps the columns of noted episodes as the last epoch trained on them.

    They leave the Learner as a series of JSON strings in its metrics, one for each
    episode, which TranscriptCollector writes into the transcripts on the driver. In an
    update without noted episodes nothing happens.
    """

    def _begin_annotations(self, episodes: Sequence[Any]) -> None:
        """Find out which of this update's episodes are noted."""
        # Their order is that of the columns' MULTI_AGENT_EPISODE_INDEX.
        noted = (
            (i, e) for i, e in enumerate(episodes) if episode_data(e).annotates_tokens
        )
        self._annotated = dict(noted)
        self._token_annotations: dict[_Key, dict[str, np.ndarray]] = defaultdict(dict)

    def _annotate_tokens(
        self, module_id: str, part: dict[str, Any], fwd_out: dict[str, Any]
    ) -> None:
        """Keep what is known of noted rows of a micro-batch, in place of what was."""
        if not self._annotated:
            return
        joint = part[columns.MULTI_AGENT_EPISODE_INDEX].cpu().numpy()
        rows = np.flatnonzero(np.isin(joint, list(self._annotated)))
        if not rows.size:
            return
        if self._is_critic(module_id):  # type: ignore[attr-defined]
            known = {"value": part[columns.VALUES]}
        else:
            known = _of_policy(part, fwd_out)
        found = {k: v.detach()[rows].float().cpu().numpy() for k, v in known.items()}
        agents = part[columns.AGENT_INDEX].cpu().numpy()
        turn_ids = part[columns.TURN_IDS].cpu().numpy()
        for place, row in enumerate(rows):
            number = int(joint[row])
            for turn in np.unique(turn_ids[row][turn_ids[row] >= 0]):
                key = (number, int(agents[row]), int(turn))
                if self._sees_all_agents(module_id):
                    key = (number, *_turn_order(self._annotated[number])[int(turn)])
                here = turn_ids[row] == turn
                for name, values in found.items():
                    self._token_annotations[key][name] = values[place][here]

    def _sees_all_agents(self, module_id: str) -> bool:
        central = self.config.critic_view == "central"  # type: ignore[attr-defined]
        return central and self._is_critic(module_id)  # type: ignore[attr-defined]

    def _log_annotations(self) -> None:
        """Hand the notes over, one string for each episode."""
        turns: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for (number, agent, turn), found in sorted(self._token_annotations.items()):
            rounded = {name: compact(values) for name, values in found.items()}
            turns[number].append({"agent": agent, "index": turn, **rounded})
        for number, of_episode in turns.items():
            note = {"episode": self._annotated[number].id_, "tokens": of_episode}
            self.metrics.log_value(  # type: ignore[attr-defined]
                (ALL_MODULES, ANNOTATIONS), dumps(note), reduce="item_series"
            )
        self._begin_annotations(())


def _of_policy(part: dict[str, Any], fwd_out: dict[str, Any]) -> dict[str, Any]:
    scores, old = fwd_out[Columns.ACTION_DIST_INPUTS], part[Columns.ACTION_LOGP]
    known = {
        "trained": part[Columns.LOSS_MASK],
        "advantage": part[Columns.ADVANTAGES],
        "old_logp": old,
        "gap": old - part[columns.BEHAVIOUR_LOGP],
        "ratio": (scores[..., 0].detach() - old).exp(),
        "entropy": scores[..., 1],
    }
    if columns.VALUES in part:
        known["value"] = part[columns.VALUES]
    return known


def _turn_order(episode: Any) -> list[tuple[int, int]]:
    """Return agent and number of every turn, as a central critic's rows count them."""
    told = [
        (turn.env_t, episode_data(part).agent_index, index)
        for part in agent_episodes(episode)
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN))
    ]
    return [(agent, index) for _, agent, index in sorted(told)]
