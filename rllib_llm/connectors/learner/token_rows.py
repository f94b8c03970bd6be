"""First learner connector: episodes to padded token columns per module."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.connectors.learner.rows import Row, RowBuilder, build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.losses.aggregation import token_weights

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode


@dataclasses.dataclass(frozen=True)
class RowSettings:
    """Settings of a policy's rows.

    Attributes:
        pad_id: Id for padding.
        loss_agg_mode: Aggregation of token losses; its weights become a column.
        loss_agg_constant: The constant of ``seq-mean-token-sum-norm``.
        row_per_turn: One row per turn instead of merged rows.
        has_critic: Whether a truncated episode is bootstrapped with a value; if not,
            its rows end with the last turn.
        observation_weight: Loss weight of prompt tokens, relative to sampled ones; 0
            trains none of them, as all algorithms except imitation require.
    """

    pad_id: int
    loss_agg_mode: str = "token-mean"
    loss_agg_constant: float | None = None
    row_per_turn: bool = False
    has_critic: bool = True
    observation_weight: float = 0.0


class TokenRows(ConnectorV2):
    """Build the rows of every episode and stack them, policy by policy.

    Args:
        settings: Settings of each policy, by ModuleID; other policies get no rows.
        critic: ModuleID of a critic that policies share, None for none.
        critic_view: Rows of that critic: those of all policies ("shared"), or one per
            episode with all agents' prompts and turns in execution order ("central").

    Attributes:
        module_ids: Policies whose rows are built; the learner reduces it to those that
            it is about to update.
    """

    def __init__(
        self,
        settings: Mapping[str, RowSettings],
        critic: str | None = None,
        critic_view: str | None = None,
    ):
        super().__init__()
        self.settings = dict(settings)
        self.critic = critic
        self.critic_view = critic_view
        self.module_ids = tuple(settings)

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
        parts_by_policy: dict[str, list[tuple[Any, int]]] = {}
        for multi_agent_index, episode in enumerate(episodes):
            for part in agent_episodes(episode):
                module_id = part.module_id or DEFAULT_MODULE_ID
                if module_id in self.module_ids:
                    parts_by_policy.setdefault(module_id, []).append(
                        (part, multi_agent_index)
                    )
        for module_id, parts in parts_by_policy.items():
            batch[module_id] = self._columns(parts, self.settings[module_id])
        if self.critic is not None and parts_by_policy:
            settings = self.settings[self.module_ids[0]]
            if self.critic_view == "central":
                critic_batch = central_columns(episodes, self.module_ids, settings)
            else:
                critic_batch = self._columns(
                    [p for parts in parts_by_policy.values() for p in parts], settings
                )
            batch[self.critic] = critic_batch
        return batch

    def _columns(
        self, parts: list[tuple[Any, int]], settings: RowSettings
    ) -> dict[str, np.ndarray]:
        rows: list[Row] = []
        owners: list[tuple[int, int, int]] = []
        trained: list[bool] = []
        advantages: list[Any] = []
        success: list[float] = []
        for index, (episode, multi_agent_index) in enumerate(parts):
            data = episode_data(episode)
            new_rows = _rows(episode, settings)
            rows += new_rows
            owners += [(index, multi_agent_index, data.agent_index)] * len(new_rows)
            trained += [data.stop_policy is not StopPolicy.MASK] * len(new_rows)
            advantages += [data.advantage] * len(new_rows)
            solved = np.nan if data.success is None else float(data.success)
            success += [solved] * len(new_rows)
        out = pad_rows(rows, pad_id=settings.pad_id, trained=trained)
        names = (
            columns.EPISODE_INDEX,
            columns.MULTI_AGENT_EPISODE_INDEX,
            columns.AGENT_INDEX,
        )
        for name, values in zip(names, zip(*owners, strict=True), strict=True):
            out[name] = np.asarray(values, np.int64)
        out[columns.SUCCESS] = np.asarray(success, np.float32)
        # Filters mask single turns; the tokens stay as context of later turns.
        mask = out[Columns.LOSS_MASK]
        for row, (part, _, _) in enumerate(owners):
            masked_turns = episode_data(parts[part][0]).masked_turns
            if masked_turns:
                mask[row] &= ~np.isin(out[columns.TURN_IDS][row], list(masked_turns))
        out[Columns.ADVANTAGES] = _spread(advantages, out[columns.TURN_IDS], mask)
        # After masked turns are left out, so that the weights cover trained tokens.
        out[columns.LOSS_WEIGHTS] = np.asarray(
            token_weights(
                mask,
                out[columns.EPISODE_INDEX],
                settings.loss_agg_mode,
                constant=settings.loss_agg_constant,
            ),
            np.float32,
        )
        if settings.observation_weight:
            _weigh_observations(out, settings.observation_weight)
        return out


def _weigh_observations(out: dict[str, np.ndarray], weight: float) -> None:
    """Train prompt tokens too, all but a row's first, which nothing predicts."""
    read = out[columns.ATTENTION_MASK] & (out[columns.TURN_IDS] < 0)
    read[:, 0] = False
    # A row's sampled tokens have equal weights, so the maximum is the weight of each.
    sampled = out[columns.LOSS_WEIGHTS].max(axis=1, keepdims=True)
    out[columns.LOSS_WEIGHTS] += read * np.float32(weight) * sampled
    out[Columns.LOSS_MASK] = out[Columns.LOSS_MASK] | read


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
                builder.prompt(turn.prompt_ids)
            for index, (_, _, module_id, turn) in together:
                if module_id in module_ids:
                    builder.turn(index, turn, 0.0)
                else:
                    builder.prompt(turn.action_ids)
        data = episode_data(episode)
        last = (episode_data(p).prompt for p in parts if p.is_truncated)
        final_prompts = [prompt for prompt in last if prompt is not None]
        for prompt in final_prompts:
            builder.prompt(prompt.ids)
        row = builder.build()
        cut = episode.is_truncated and data.stop_policy is StopPolicy.BOOTSTRAP
        row.bootstrap = row.bootstraps_agent_turn = settings.has_critic and cut
        rows.append(row)
        owners.append(multi_agent_index)
        trained.append(data.stop_policy is not StopPolicy.MASK)
    out = pad_rows(rows, pad_id=settings.pad_id, trained=trained)
    out[columns.EPISODE_INDEX] = out[columns.MULTI_AGENT_EPISODE_INDEX] = np.asarray(
        owners, np.int64
    )
    out[columns.AGENT_INDEX] = np.zeros(len(rows), np.int64)
    # A critic's batch needs these columns, but its loss is on values only.
    zeros = np.zeros(out[columns.INPUT_IDS].shape, np.float32)
    out[Columns.ADVANTAGES], out[columns.LOSS_WEIGHTS] = zeros, zeros.copy()
    return out


def _spread(
    advantages: list[Any], turn_ids: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Assign each trained token the advantage of its episode or turn. [B, T]"""
    out = np.zeros(mask.shape, np.float32)
    for row, advantage in enumerate(advantages):
        if advantage is None:
            continue
        per_turn = np.asarray(advantage, np.float32)
        # Prompt tokens have turn -1 and so the last turn's entry; the mask removes
        # them.
        out[row] = per_turn if per_turn.ndim == 0 else per_turn[turn_ids[row]]
    return np.where(mask, out, np.float32(0))


def _rows(episode: SingleAgentEpisode, settings: RowSettings) -> list[Row]:
    data = episode_data(episode)
    # RLlib's stock EnvRunner sets no stop reason: bootstrap any truncated episode.
    bootstrap = settings.has_critic and (
        data.stop_reason is None or data.stop_policy is StopPolicy.BOOTSTRAP
    )
    return build_rows(
        episode.get_extra_model_outputs(columns.TURN),
        episode.get_rewards(),
        final_prompt=data.prompt,
        bootstrap=episode.is_truncated and bootstrap,
        row_per_turn=settings.row_per_turn,
    )
