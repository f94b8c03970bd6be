"""Third learner connector of teams: GAE through the turns of all trained agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.advantages.multi_agent_gae import message_gae, two_level_gae
from rllib_llm.connectors.learner.token_gae import GAESettings, token_penalties
from rllib_llm.connectors.learner.whiten_rows import whiten_rows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.micro_batches import keep, read
from rllib_llm.data.types import StopPolicy
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule

LEVELS = ("action", "token")
TEAM_REWARDS = ("mean", "sum")


@dataclasses.dataclass
class _Tokens:
    """Positions of all policies' trained tokens, in execution order.

    Attributes:
        module: Number of the policy. [N]
        row: Row in its batch. [N]
        column: Column of that row. [N]
        episode: Multi-agent episode. [N]
        message: Number of the message, from 0. [N]
        first: Index of each message's first token. [M]
        steps: Environment step of each message. [M]
        episodes: Episode of each message. [M]
    """

    module: np.ndarray
    row: np.ndarray
    column: np.ndarray
    episode: np.ndarray
    message: np.ndarray
    first: np.ndarray
    steps: np.ndarray
    episodes: np.ndarray

    def read(self, batches: list[dict[str, Any]], key: str) -> np.ndarray:
        """Return a column's entries at these tokens. float64 [N]"""
        out = np.zeros(len(self.row))
        for index, data in enumerate(batches):
            here = self.module == index
            array = data[key].double().cpu().numpy()
            out[here] = array[self.row[here], self.column[here]]
        return out

    def write(self, data: dict[str, Any], index: int, values: np.ndarray) -> np.ndarray:
        """Return the entries of policy ``index`` as an array of its rows. [B, T]"""
        out = np.zeros(data[Columns.LOSS_MASK].shape)
        here = self.module == index
        out[self.row[here], self.column[here]] = values[here]
        return out


class MultiAgentGAE(ConnectorV2):
    """GAE along the execution order of an episode, from agent to agent.

    MARFT (Liao et al. 2025, arXiv:2504.16129): messages of all trained agents form one
    sequence, ordered by environment step; those of one step are simultaneous. The
    reward of a step is the team's: the mean or sum over agents of the rewards received
    from this step up to the next.

    Values come from each policy's own critic, or from one that they share.

    Args:
        settings: Settings of each policy, by ModuleID; the discounts and lambdas must
            be equal.
        level: "action": one advantage and one value per message; "token": one per
            token, with ``gamma_token`` and ``lambda_token`` inside a message.
        team_reward: "mean" or "sum" over the agents.
        critic: ModuleID of a critic that policies share, None for one per policy.
        whiten_by: "batch": over all tokens; "agent": over each agent's tokens alone.
    """

    def __init__(
        self,
        settings: Mapping[str, GAESettings],
        *,
        level: str,
        team_reward: str = "mean",
        critic: str | None = None,
        whiten_by: str = "agent",
    ):
        super().__init__()
        self.settings = dict(settings)
        self.level = level
        self.team_reward = team_reward
        self.critic = critic
        self.whiten_by = whiten_by

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
        policies = sorted(m for m in batch if m != self.critic)
        batches = [batch[m] for m in policies]
        parameters = rl_module[next(iter(self.settings))].unwrapped().parameters()
        device = next(parameters).device
        if not batches:  # the other Learners wait for this one's moments
            self._whiten(batches, device)
            return batch
        tokens = _execution_order(batches)
        value_batches = batches if self.critic is None else [batch[self.critic]]
        value_tokens = (
            tokens if self.critic is None else _execution_order(value_batches)
        )
        values = value_tokens.read(value_batches, columns.VALUES)
        # A central critic values a step once, before its first turn.
        values[tokens.first] = values[
            value_tokens.first[value_tokens.message[tokens.first]]
        ]
        advantages, targets = self._estimate(
            tokens,
            values,
            rewards=_team_rewards(tokens, episodes, self.team_reward),
            penalties=self._penalties(tokens, policies, batches),
            bootstraps=_bootstraps(value_batches, np.unique(tokens.episodes), episodes),
        )
        starts, valued = np.zeros((2, len(tokens.row)))
        starts[tokens.first], valued[value_tokens.first] = 1.0, 1.0
        for index, data in enumerate(batches):
            self._store(data, Columns.ADVANTAGES, tokens.write(data, index, advantages))
            self._store(data, columns.MESSAGE_STARTS, tokens.write(data, index, starts))
        for index, data in enumerate(value_batches):
            array = value_tokens.write(data, index, targets)
            self._store(data, Columns.VALUE_TARGETS, array)
            starts_of_values = value_tokens.write(data, index, valued)
            self._store(data, columns.MESSAGE_STARTS, starts_of_values)
        self._whiten(batches, device)
        return batch

    def _estimate(
        self,
        tokens: _Tokens,
        values: np.ndarray,
        *,
        rewards: np.ndarray,
        penalties: np.ndarray,
        bootstraps: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return advantages and value targets of all tokens. 2 x [N]"""
        settings = next(iter(self.settings.values()))
        common: dict[str, Any] = {
            "gamma": settings.gamma,
            "lambda_": settings.lambda_,
            "order": tokens.steps,
            "bootstrap_values": bootstraps,
        }
        if self.level == "token":
            return two_level_gae(
                rewards,
                values,
                tokens.message,
                tokens.episodes,
                gamma_token=settings.gamma_token,
                lambda_token=settings.lambda_token,
                token_rewards=penalties,
                **common,
            )
        # Penalties of a message's tokens are part of its reward, as its action is one
        # step.
        team_rewards = rewards + np.bincount(tokens.message, penalties, len(rewards))
        estimates = message_gae(
            team_rewards, values[tokens.first], tokens.episodes, **common
        )
        advantages, targets = (each[tokens.message] for each in estimates)
        return advantages, targets

    def _penalties(
        self, tokens: _Tokens, policies: list[str], batches: list[dict[str, Any]]
    ) -> np.ndarray:
        """Return the KL penalty of each token, at most 0. [N]"""
        out = np.zeros(len(tokens.row))
        for index, (module_id, data) in enumerate(zip(policies, batches, strict=True)):
            here = tokens.module == index
            cost = token_penalties(data, self.settings[module_id])
            out[here] = cost[tokens.row[here], tokens.column[here]]
        return out

    def _whiten(self, batches: list[dict[str, Any]], device: torch.device) -> None:
        """Standardise advantages over all Learners, per agent or over everything."""
        if not all(settings.whiten for settings in self.settings.values()):
            return
        masks = [read(d, Columns.LOSS_MASK) for d in batches]
        arrays = [d[Columns.ADVANTAGES].double().cpu().numpy() for d in batches]
        counted = masks
        if self.level == "action":  # a message counts once, whatever its length
            counted = [read(d, columns.MESSAGE_STARTS) > 0 for d in batches]
        agents = [read(d, columns.AGENT_INDEX) for d in batches]
        whiten_rows(
            arrays,
            masks,
            device,
            agents=agents if self.whiten_by == "agent" else None,
            counted=counted,
        )
        for data, array in zip(batches, arrays, strict=True):
            self._store(data, Columns.ADVANTAGES, array)

    @staticmethod
    def _store(data: dict[str, Any], key: str, array: np.ndarray) -> None:
        array = array.astype(np.float32)
        keep(data, key, array)
        data[key] = upload(array, data[Columns.LOSS_MASK].device)


def _execution_order(batches: list[dict[str, Any]]) -> _Tokens:
    """Return all trained tokens, sorted by episode, environment step and agent."""
    positions = []
    for index, data in enumerate(batches):
        row, column = np.nonzero(read(data, Columns.LOSS_MASK))
        episode_number = read(data, columns.MULTI_AGENT_EPISODE_INDEX)[row]
        agent = read(data, columns.AGENT_INDEX)[row]
        step = read(data, columns.TURN_STEPS)[row, column]
        positions.append(
            (np.full(len(row), index), row, column, episode_number, step, agent)
        )
    module, row, column, episode_number, step, agent = (
        np.concatenate(each) for each in zip(*positions, strict=True)
    )
    # A message is in one row; a central critic's row holds a whole episode.
    order = np.lexsort((column, row, agent, step, episode_number))
    module, row, column, episode_number, step, agent = (
        each[order] for each in (module, row, column, episode_number, step, agent)
    )
    key = np.stack((episode_number, step, agent))
    is_first = np.ones(len(row), bool)
    is_first[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    first = np.flatnonzero(is_first)
    return _Tokens(
        module,
        row,
        column,
        episode_number,
        message=np.cumsum(is_first) - 1,
        first=first,
        steps=step[first],
        episodes=episode_number[first],
    )


def _team_rewards(tokens: _Tokens, episodes: list[Any], how: str) -> np.ndarray:
    """Return the team's reward of each message. [M]

    Rewards of a step without a trained message count for the message before it, or for
    the first; messages of one step share its rewards equally.
    """
    out = np.zeros(len(tokens.first))
    for episode_number in np.unique(tokens.episodes):
        episode = episodes[episode_number]
        here = np.flatnonzero(tokens.episodes == episode_number)
        steps = tokens.steps[here]
        reward_log = episode.custom_data[columns.REWARD_LOG]
        team = {*episode.agent_episodes, *(agent for _, agent, _ in reward_log)}
        agents = len(team) if how == "mean" else 1
        for env_t, _, reward in reward_log:
            # The reward at env_t follows the actions of the steps before it.
            before = steps[steps < env_t]
            last = before.max() if len(before) else steps.min()
            sharers = here[steps == last]
            out[sharers] += reward / agents / len(sharers)
    return out


def _bootstraps(
    batches: list[dict[str, Any]], valued: np.ndarray, episodes: list[Any]
) -> np.ndarray:
    """Return the mean value of the next agents after each truncated episode. [E]

    It is 0 for other episodes. If no next agent has a row (it has not acted yet, or its
    context is full), it is the mean over all agents that were truncated.
    """
    # First entry: all truncated agents; second: those that were to act next. [2, E]
    totals, counts = np.zeros((2, len(valued))), np.zeros((2, len(valued)))
    for data in batches:
        column = read(data, columns.BOOTSTRAP_COLUMN)
        is_agent_turn = read(data, columns.BOOTSTRAPS_AGENT_TURN)
        values = data[columns.VALUES].double().cpu().numpy()
        episode_number = read(data, columns.MULTI_AGENT_EPISODE_INDEX)
        for row in np.flatnonzero((column >= 0) & np.isin(episode_number, valued)):
            # An agent may be truncated early in an episode that others finished.
            stop_policy = episode_data(episodes[episode_number[row]]).stop_policy
            if stop_policy is StopPolicy.BOOTSTRAP:
                place = np.searchsorted(valued, episode_number[row])
                which = (0, 1) if is_agent_turn[row] else (0,)
                totals[which, place] += values[row, column[row]]
                counts[which, place] += 1
    means = totals / np.maximum(counts, 1)
    return np.where(counts[1] > 0, means[1], means[0])
