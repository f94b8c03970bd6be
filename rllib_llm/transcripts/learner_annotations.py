"""Token annotations of transcripts by the Learner."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.micro_batches import read
from rllib_llm.rllib_bases import RLlibLearner
from rllib_llm.transcripts.annotations import ANNOTATIONS, compact, dumps
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.types import Episode

# Indices of a turn: of its episode, of its agent, and among the agent's turns.
_Key = tuple[int, int, int]


@dataclasses.dataclass
class _Annotated:
    """Annotated rows of a micro-batch, whose values are still on the device.

    Attributes:
        sees_all_agents: Whether the rows are those of a central critic.
        names: Names of the values. [K]
        values: The values of all tokens. [K, b, T]
        episodes: Number of the episode of each row. [b]
        agents: Agent of each row. [b]
        turn_ids: Turn of each token, -1 outside of turns. [b, T]
    """

    sees_all_agents: bool
    names: tuple[str, ...]
    values: torch.Tensor
    episodes: np.ndarray
    agents: np.ndarray
    turn_ids: np.ndarray


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
        self._unread: list[_Annotated] = []

    def _annotate_tokens(
        self, module_id: str, part: dict[str, Any], fwd_out: dict[str, Any]
    ) -> None:
        """Record the columns of annotated rows; later epochs overwrite earlier ones."""
        if not self._annotated:
            return
        joint = read(part, columns.MULTI_AGENT_EPISODE_INDEX)
        rows = np.flatnonzero(np.isin(joint, list(self._annotated)))
        if not rows.size:
            return
        if self._is_critic(module_id):
            tensors = {"value": part[columns.VALUES]}
        else:
            tensors = _of_policy(part, fwd_out)
        stacked = torch.stack([v.detach().float() for v in tensors.values()])
        # Read back at the end of the update, all at once.
        self._unread.append(
            _Annotated(
                sees_all_agents=self._sees_all_agents(module_id),
                names=tuple(tensors),
                values=stacked[:, upload(rows, stacked.device)],
                episodes=joint[rows],
                agents=read(part, columns.AGENT_INDEX)[rows],
                turn_ids=read(part, columns.TURN_IDS)[rows],
            )
        )

    def _read_annotations(self) -> None:
        """Fetch the recorded values from the device and sort them by turn."""
        if not self._unread:
            return
        flat = torch.cat([part.values.flatten() for part in self._unread]).cpu()
        sizes = [part.values.numel() for part in self._unread]
        for part, values in zip(self._unread, flat.split(sizes), strict=True):
            self._sort_by_turn(part, values.view(part.values.shape).numpy())
        self._unread.clear()

    def _sort_by_turn(self, part: _Annotated, values: np.ndarray) -> None:
        for place, turn_ids in enumerate(part.turn_ids):
            number = int(part.episodes[place])
            for turn in np.unique(turn_ids[turn_ids >= 0]):
                key = (number, int(part.agents[place]), int(turn))
                if part.sees_all_agents:
                    key = (number, *_turn_order(self._annotated[number])[int(turn)])
                here = turn_ids == turn
                for name, array in zip(part.names, values, strict=True):
                    self._token_annotations[key][name] = array[place][here]

    def _sees_all_agents(self, module_id: str) -> bool:
        central = self.config.critic_view == "central"
        return central and self._is_critic(module_id)

    def _log_annotations(self) -> None:
        """Log the annotations, one string per episode."""
        self._read_annotations()
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
