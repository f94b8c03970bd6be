"""Learner connector of a central critic: one row per episode with all agents' turns."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.connectors.learner.token_rows import (
    Row,
    RowBuilder,
    RowSettings,
    pad_rows,
)
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.pictures.contract import Pictures
from rllib_llm.pictures.row_pictures import picture_columns

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule


class CentralRows(ConnectorV2):
    """Add the critic's rows; it stands after TokenRows, whose policies it values.

    Args:
        critic: ModuleID of the critic.
        settings: Settings of each policy's rows, by ModuleID; the critic's rows have
            those of the first one.
    """

    def __init__(self, critic: str, settings: Mapping[str, RowSettings]):
        super().__init__()
        self.critic = critic
        self.settings = dict(settings)

    @override(ConnectorV2)
    def __call__(
        self,
        *,
        rl_module: RLModule | MultiRLModule,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        # The Learner tells TokenRows alone which policies it is about to update: those
        # are the ones that have rows here.
        module_ids = [m for m in self.settings if m in batch]
        if module_ids:
            settings = self.settings[module_ids[0]]
            batch[self.critic] = central_columns(episodes, module_ids, settings)
        return batch


def central_columns(
    episodes: list[Any], module_ids: Collection[str], settings: RowSettings
) -> dict[str, np.ndarray]:
    """Return one row per episode with the prompts and turns of all agents.

    Args:
        episodes: MultiAgentEpisodes.
        module_ids: Policies whose turns get values; others' turns are part of the text.
        settings: Settings of the rows.

    Returns:
        The columns of policies' rows; ``agent_index`` is 0.
    """
    rows: list[Row] = []
    owners: list[int] = []
    trained: list[bool] = []
    stores: list[Pictures] = []
    for multi_agent_index, episode in enumerate(episodes):
        parts = agent_episodes(episode)
        turns = [
            (turn.env_t, episode_data(part).agent_index, part.module_id, turn)
            for part in parts
            for turn in part.get_extra_model_outputs(columns.TURN)
        ]
        if not any(module_id in module_ids for _, _, module_id, _ in turns):
            continue  # nothing to value
        # By environment step, then by agent: the execution order of MARFT.
        turns.sort(key=lambda each: each[:2])
        builder = RowBuilder()
        for _, step in itertools.groupby(enumerate(turns), key=lambda each: each[1][0]):
            together = list(step)
            # All prompts of a step before its first turn: the value of the joint
            # action must not depend on a part of it.
            for _, (*_, turn) in together:
                builder.prompt(turn.prompt_ids, turn.images)
            for index, (_, _, module_id, turn) in together:
                if module_id in module_ids:
                    # Without rewards: MultiAgentGAE takes the team's from the reward
                    # log.
                    builder.turn(index, turn, 0.0)
                else:
                    builder.prompt(turn.action_ids)
        data = episode_data(episode)
        last = (episode_data(p).prompt for p in parts if p.is_truncated)
        final_prompts = [prompt for prompt in last if prompt is not None]
        for prompt in final_prompts:
            builder.prompt(prompt.ids, prompt.images)
        row = builder.build()
        cut = episode.is_truncated and data.stop_policy is StopPolicy.BOOTSTRAP
        row.bootstrap = row.bootstraps_agent_turn = settings.has_critic and cut
        rows.append(row)
        seen: Pictures = {}
        for part in parts:
            seen |= episode_data(part).pictures
        stores.append(seen)
        owners.append(multi_agent_index)
        trained.append(data.stop_policy is not StopPolicy.MASK)
    out = pad_rows(rows, pad_id=settings.pad_id, trained=trained)
    if settings.pictures is not None:
        out |= picture_columns([r.images for r in rows], stores, settings.pictures)
    out[columns.EPISODE_INDEX] = out[columns.MULTI_AGENT_EPISODE_INDEX] = np.asarray(
        owners, np.int64
    )
    out[columns.AGENT_INDEX] = np.zeros(len(rows), np.int64)
    # A critic's batch needs these columns, but its loss is on values only.
    zeros = np.zeros(out[columns.INPUT_IDS].shape, np.float32)
    out[Columns.ADVANTAGES], out[columns.LOSS_WEIGHTS] = zeros, zeros.copy()
    return out
