"""First learner connector: episodes to padded token columns per module."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm import columns
from rllib_llm.connectors.episode_data import episode_data
from rllib_llm.connectors.learner.rows import Row, build_rows, pad_rows
from rllib_llm.objectives.normalisers import token_weights
from rllib_llm.types import StopPolicy


class TokenRows(ConnectorV2):
    """Build the rows of every episode and stack them, module by module.

    Args:
        pad_id: Id for padding.
        loss_agg_mode: How token losses are averaged; its weights become a column.
        loss_agg_constant: The constant of ``seq-mean-token-sum-norm``.
        row_per_turn: One row per turn instead of merged rows.
        has_critic: Whether a cut episode's value counts; if not, its rows end with
            its last turn.
    """

    def __init__(
        self,
        *,
        pad_id: int,
        loss_agg_mode: str = "token-mean",
        loss_agg_constant: float | None = None,
        row_per_turn: bool = False,
        has_critic: bool = True,
    ):
        super().__init__()
        self.pad_id = pad_id
        self.loss_agg_mode = loss_agg_mode
        self.loss_agg_constant = loss_agg_constant
        self.row_per_turn = row_per_turn
        self.has_critic = has_critic

    @override(ConnectorV2)
    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        per_module: dict[str, list[Any]] = {}
        for episode in self.single_agent_episode_iterator(
            episodes, agents_that_stepped_only=False
        ):
            module_id = episode.module_id or DEFAULT_MODULE_ID
            per_module.setdefault(module_id, []).append(episode)
        for module_id, module_episodes in per_module.items():
            batch[module_id] = self._columns(module_episodes)
        return batch

    def _columns(self, episodes: list[Any]) -> dict[str, np.ndarray]:
        rows: list[Row] = []
        owners: list[int] = []
        trained: list[bool] = []
        credit: list[float] = []
        for index, episode in enumerate(episodes):
            data = episode_data(episode)
            episode_rows = self._rows(episode)
            rows += episode_rows
            owners += [index] * len(episode_rows)
            trained += [data.stop_policy is not StopPolicy.MASK] * len(episode_rows)
            credit += [data.advantage or 0.0] * len(episode_rows)
        out = pad_rows(rows, pad_id=self.pad_id, trained=trained)
        out[columns.EPISODE_INDEX] = np.asarray(owners, np.int64)
        mask = out[Columns.LOSS_MASK]
        out[Columns.ADVANTAGES] = np.where(
            mask, np.asarray(credit, np.float32)[:, None], np.float32(0)
        )
        out[columns.LOSS_WEIGHTS] = np.asarray(
            token_weights(
                mask,
                out[columns.EPISODE_INDEX],
                self.loss_agg_mode,
                constant=self.loss_agg_constant,
            ),
            np.float32,
        )
        return out

    def _rows(self, episode: Any) -> list[Row]:
        data = episode_data(episode)
        # Stock env runners state no reason; a truncated episode is then bootstrapped.
        bootstrap = self.has_critic and (
            data.stop_reason is None or data.stop_policy is StopPolicy.BOOTSTRAP
        )
        return build_rows(
            episode.get_extra_model_outputs(columns.TURN),
            episode.get_rewards(),
            final_prompt=data.prompt if episode.is_truncated else None,
            bootstrap=episode.is_truncated and bootstrap,
            row_per_turn=self.row_per_turn,
        )
