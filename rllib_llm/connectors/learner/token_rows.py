"""First learner connector: episodes to padded token columns per module."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class RowSettings:
    """How a policy's rows are made.

    Attributes:
        pad_id: Id for padding.
        loss_agg_mode: How token losses are averaged; its weights become a column.
        loss_agg_constant: The constant of ``seq-mean-token-sum-norm``.
        row_per_turn: One row per turn instead of merged rows.
        has_critic: Whether a cut episode's value counts; if not, its rows end with
            its last turn.
        observation_weight: Of tokens that were read, relative to those that were said;
            0 trains none of them, as everything but imitation must.
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
        settings: Of each policy, by ModuleID; rows of others are not built.
        critic: ModuleID of a critic that policies share, None for none.
        critic_view: Its rows are those of all policies ("shared"), or hold all that
            was read and said in an episode, in execution order ("central").

    Attributes:
        module_ids: Whose rows are built; the learner narrows it down to the policies
            it is going to update.
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
        rl_module: Any,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        found: dict[str, list[tuple[Any, int]]] = {}
        for joint, episode in enumerate(episodes):
            for part in agent_episodes(episode):
                module_id = part.module_id or DEFAULT_MODULE_ID
                if module_id in self.module_ids:
                    found.setdefault(module_id, []).append((part, joint))
        for module_id, parts in found.items():
            batch[module_id] = self._columns(parts, self.settings[module_id])
        if self.critic is not None and found:
            settings = self.settings[self.module_ids[0]]
            if self.critic_view == "central":
                told = central_columns(episodes, self.module_ids, settings)
            else:
                told = self._columns(
                    [p for each in found.values() for p in each], settings
                )
            batch[self.critic] = told
        return batch

    def _columns(
        self, parts: list[tuple[Any, int]], settings: RowSettings
    ) -> dict[str, np.ndarray]:
        rows: list[Row] = []
        owners: list[tuple[int, int, int]] = []
        trained: list[bool] = []
        advantages: list[Any] = []
        success: list[float] = []
        for index, (episode, joint) in enumerate(parts):
            data = episode_data(episode)
            new = _rows(episode, settings)
            rows += new
            owners += [(index, joint, data.agent_index)] * len(new)
            trained += [data.stop_policy is not StopPolicy.MASK] * len(new)
            advantages += [data.advantage] * len(new)
            solved = np.nan if data.success is None else float(data.success)
            success += [solved] * len(new)
        out = pad_rows(rows, pad_id=settings.pad_id, trained=trained)
        names = (
            columns.EPISODE_INDEX,
            columns.MULTI_AGENT_EPISODE_INDEX,
            columns.AGENT_INDEX,
        )
        for name, values in zip(names, zip(*owners, strict=True), strict=True):
            out[name] = np.asarray(values, np.int64)
        out[columns.SUCCESS] = np.asarray(success, np.float32)
        mask = out[Columns.LOSS_MASK]
        for row, (part, _, _) in enumerate(owners):
            left_out = episode_data(parts[part][0]).masked_turns
            if left_out:
                mask[row] &= ~np.isin(out[columns.TURN_IDS][row], list(left_out))
        out[Columns.ADVANTAGES] = _spread(advantages, out[columns.TURN_IDS], mask)
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
    """Let a row's read tokens be learnt too, all but the first, which follows none."""
    read = out[columns.ATTENTION_MASK] & (out[columns.TURN_IDS] < 0)
    read[:, 0] = False
    said = out[columns.LOSS_WEIGHTS].max(axis=1, keepdims=True)  # equal in a row
    out[columns.LOSS_WEIGHTS] += read * np.float32(weight) * said
    out[Columns.LOSS_MASK] = out[Columns.LOSS_MASK] | read


def central_columns(
    episodes: list[Any], module_ids: Collection[str], settings: RowSettings
) -> dict[str, np.ndarray]:
    """Return one row per episode with everything that its agents read and said.

    Args:
        episodes: MultiAgentEpisodes.
        module_ids: Policies whose messages are valued; others' are part of the text.
        settings: Of the rows.

    Returns:
        Columns as those of policies; ``agent_index`` is 0.
    """
    rows: list[Row] = []
    owners: list[int] = []
    trained: list[bool] = []
    for joint, episode in enumerate(episodes):
        parts = agent_episodes(episode)
        said = [
            (turn.env_t, episode_data(part).agent_index, part.module_id, turn)
            for part in parts
            for turn in part.get_extra_model_outputs(columns.TURN)
        ]
        if not any(module_id in module_ids for _, _, module_id, _ in said):
            continue  # nothing to value
        said.sort(key=lambda each: each[:2])
        builder = RowBuilder()
        for _, step in itertools.groupby(enumerate(said), key=lambda each: each[1][0]):
            together = list(step)
            # All that is read in a step before any of it is answered: the value of
            # the joint action must not know a part of it.
            for _, (*_, turn) in together:
                builder.prompt(turn.prompt_ids)
            for index, (_, _, module_id, turn) in together:
                if module_id in module_ids:
                    builder.turn(index, turn, 0.0)
                else:
                    builder.prompt(turn.action_ids)
        data = episode_data(episode)
        asked = [episode_data(p).prompt for p in parts if p.is_truncated]
        asked = [prompt for prompt in asked if prompt is not None]
        for prompt in asked:
            builder.prompt(prompt.ids)
        row = builder.build()
        cut = episode.is_truncated and data.stop_policy is StopPolicy.BOOTSTRAP
        row.bootstrap = row.bootstraps_agent_turn = settings.has_critic and cut
        rows.append(row)
        owners.append(joint)
        trained.append(data.stop_policy is not StopPolicy.MASK)
    out = pad_rows(rows, pad_id=settings.pad_id, trained=trained)
    out[columns.EPISODE_INDEX] = out[columns.MULTI_AGENT_EPISODE_INDEX] = np.asarray(
        owners, np.int64
    )
    out[columns.AGENT_INDEX] = np.zeros(len(rows), np.int64)
    zeros = np.zeros(out[columns.INPUT_IDS].shape, np.float32)
    out[Columns.ADVANTAGES], out[columns.LOSS_WEIGHTS] = zeros, zeros.copy()
    return out


def _spread(
    advantages: list[Any], turn_ids: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Give every trained token its episode's advantage, or its turn's. [B, T]"""
    out = np.zeros(mask.shape, np.float32)
    for row, advantage in enumerate(advantages):
        if advantage is None:
            continue
        per_turn = np.asarray(advantage, np.float32)
        out[row] = per_turn if per_turn.ndim == 0 else per_turn[turn_ids[row]]
    return np.where(mask, out, np.float32(0))


def _rows(episode: Any, settings: RowSettings) -> list[Row]:
    data = episode_data(episode)
    # Stock env runners state no reason; a truncated episode is then bootstrapped.
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
