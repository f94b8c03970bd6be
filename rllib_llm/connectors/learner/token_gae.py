"""Third learner connector: advantages and value targets over trained tokens only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.turn_gae import bilevel_gae, length_adaptive_lambda, turn_gae
from rllib_llm.connectors.learner.whiten_rows import whiten_rows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import SAMPLED, SOURCES
from rllib_llm.data.micro_batches import keep, read
from rllib_llm.losses.kl import kl_penalty
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule


@dataclasses.dataclass
class GAESettings:
    """Settings of one policy's advantage estimation.

    Attributes:
        gamma: Discount per turn.
        lambda_: GAE's lambda per turn.
        gamma_token: Discount per token inside a turn.
        lambda_token: GAE's lambda per token inside a turn.
        whiten: Standardise advantages over trained tokens, over all Learners.
        whiten_by: Over the tokens of the whole "batch", or of each "agent" alone.
        ref_kl_coeff: Coefficient of the per-token KL penalty that is subtracted from
            the rewards; the learner updates it. None: no such penalty.
        ref_kl_estimator: "k1", "k2" or "k3" (rllib_llm.losses.kl).
        ref_kl_clip: Largest "k3" of a token; None: no bound.
        level: "token", "turn" or "bilevel" (rllib_llm.advantages.turn_gae).
        lambda_critic: Lambda of the value targets; None: that of the advantages.
        length_alpha: Alpha of :func:`length_adaptive_lambda`; None: the lambdas above.
        values_are_logits: Whether the critic outputs logits of returns in [0, 1].
    """

    gamma: float
    lambda_: float
    gamma_token: float = 1.0
    lambda_token: float = 1.0
    whiten: bool = True
    whiten_by: str = "batch"
    ref_kl_coeff: float | None = None
    ref_kl_estimator: str = "k1"
    ref_kl_clip: float | None = None
    level: str = "token"
    lambda_critic: float | None = None
    length_alpha: float | None = None
    values_are_logits: bool = False


class TokenGAE(ConnectorV2):
    """Generalised advantage estimation along an episode's sampled tokens.

    Prompt tokens are skipped: they neither discount nor decay. Between the last token
    of a turn and the first of the next, ``gamma`` and ``lambda_`` apply (RLlib's time
    step is a turn); inside a turn ``gamma_token`` and ``lambda_token`` do. An episode
    in several rows is one sequence, and so is each agent's part of a multi-agent
    episode.

    Args:
        settings: Settings of each policy, by ModuleID.
    """

    def __init__(self, settings: Mapping[str, GAESettings]):
        super().__init__()
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
        # Sorted: all Learners must call the collective operations in the same order.
        for module_id, settings in sorted(self.settings.items()):
            if module_id in batch:
                self._add_advantages(batch[module_id], settings)
            elif settings.whiten:
                # A policy without rows here still joins the sum over all Learners.
                parameters = rl_module[module_id].unwrapped().parameters()
                agents: list[np.ndarray] | None
                agents = [] if settings.whiten_by == "agent" else None
                whiten_rows([], [], next(parameters).device, agents=agents)
        return batch

    def _add_advantages(self, data: dict[str, Any], settings: GAESettings) -> None:
        device = data[columns.VALUES].device
        mask = read(data, Columns.LOSS_MASK)
        # float64: sums of discounted float32 terms would drift over long episodes.
        rewards = data[columns.TOKEN_REWARDS].double().cpu().numpy()
        # Before GAE, so that later tokens' penalties count in earlier advantages.
        rewards = rewards + token_penalties(data, settings)
        if settings.values_are_logits:
            # The column too: metrics compare it with the targets.
            data[columns.VALUES] = data[columns.VALUES].sigmoid()
        values = data[columns.VALUES].double().cpu().numpy()
        turns = read(data, columns.TURN_IDS)
        owners = read(data, columns.EPISODE_INDEX)
        advantages, targets = np.zeros_like(values), np.zeros_like(values)
        weights = np.zeros_like(values)
        for owner in np.unique(owners):
            # Boolean indexing below joins the rows of an episode into one sequence of
            # trained tokens. [N]
            rows = np.flatnonzero(owners == owner)
            trained = mask[rows]
            if not trained.any():
                continue
            # In time order: the rows of alternating conversations are not. Stable,
            # because the tokens of a turn are in order and in one row.
            order = np.argsort(turns[rows][trained], kind="stable")
            turn_of = turns[rows][trained][order]
            ends = np.diff(turn_of, append=-1) != 0  # last token of a turn
            gae, target = episode_gae(
                rewards[rows][trained][order],
                values[rows][trained][order],
                ends,
                settings,
                bootstrap_value=_bootstrap_value(data, values, rows),
            )
            _scatter(advantages, rows, trained, gae, order)
            _scatter(targets, rows, trained, target, order)
            # One value per turn: all of an episode's token weights go to its turns'
            # first tokens, so that long turns count no more than short ones.
            share = np.append(True, ends[:-1]) * (len(ends) / ends.sum())
            _scatter(weights, rows, trained, share, order)
        if settings.level == "turn":
            weights = weights.astype(np.float32)
            keep(data, columns.VALUE_WEIGHTS, weights)
            data[columns.VALUE_WEIGHTS] = upload(weights, device)
        if settings.whiten:
            by_agent = settings.whiten_by == "agent"
            agents = [read(data, columns.AGENT_INDEX)] if by_agent else None
            whiten_rows([advantages], [_sampled(data, mask)], device, agents=agents)
        for key, array in (
            (Columns.ADVANTAGES, advantages),
            (Columns.VALUE_TARGETS, targets),
        ):
            data[key] = upload(array.astype(np.float32), device)


def _sampled(data: dict[str, Any], mask: np.ndarray) -> np.ndarray:
    """Return the trained tokens of sampled rows, without pairs. bool [B, T]"""
    if columns.SOURCE not in data:
        return mask
    is_sampled = read(data, columns.SOURCE) == SOURCES.index(SAMPLED)
    return mask & is_sampled[:, None]


def episode_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    ends: np.ndarray,
    settings: GAESettings,
    *,
    bootstrap_value: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and value targets of one episode's trained tokens.

    Args:
        rewards: Reward after each token. [N]
        values: Critic's estimate before each token. [N]
        ends: Whether a token is the last one of its turn. bool [N]
        settings: Level, discounts and lambdas.
        bootstrap_value: Value after the last token.
    """
    common: dict[str, Any] = {
        "lambda_critic": settings.lambda_critic,
        "bootstrap_value": bootstrap_value,
    }
    between, inside = settings.lambda_, settings.lambda_token
    if settings.level == "turn":
        return turn_gae(
            rewards, values, ends, gamma=settings.gamma, lambda_=between, **common
        )
    if settings.level == "bilevel":
        return bilevel_gae(
            rewards,
            values,
            ends,
            gamma=settings.gamma,
            lambda_=between,
            gamma_token=settings.gamma_token,
            lambda_token=inside,
            **common,
        )
    if settings.length_alpha is not None:
        between = inside = length_adaptive_lambda(len(ends), settings.length_alpha)
    return token_gae(
        rewards,
        values,
        gamma=np.where(ends, settings.gamma, settings.gamma_token),
        lambda_=np.where(ends, between, inside),
        **common,
    )


def token_penalties(data: dict[str, Any], settings: GAESettings) -> np.ndarray:
    """Return the KL penalty of each token, at most 0. [B, T]"""
    if settings.ref_kl_coeff is None:
        return np.zeros(data[Columns.LOSS_MASK].shape)
    kl = kl_penalty(
        data[Columns.ACTION_LOGP].double(),
        data[columns.REF_LOGP].double(),
        data[Columns.LOSS_MASK],
        settings.ref_kl_estimator,
        largest=settings.ref_kl_clip,
    )
    return -settings.ref_kl_coeff * kl.cpu().numpy()


def _bootstrap_value(
    data: dict[str, Any], values: np.ndarray, rows: np.ndarray
) -> float:
    # At most one row of an episode has a bootstrap column: that of its last turn.
    after = read(data, columns.BOOTSTRAP_COLUMN)[rows]
    last = int(np.argmax(after))
    return float(values[rows[last], after[last]]) if after[last] >= 0 else 0.0


def _scatter(
    target: np.ndarray,
    rows: np.ndarray,
    mask: np.ndarray,
    values: np.ndarray,
    order: np.ndarray,
) -> None:
    in_rows = np.empty_like(values)
    in_rows[order] = values
    block = np.zeros(mask.shape, target.dtype)
    block[mask] = in_rows
    # The mask selects in row-major order, in which the values were joined.
    target[rows] = block
