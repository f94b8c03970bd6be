"""Third learner connector of teams: one credit chain through all agents' messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.advantages.multi_agent_gae import message_gae, two_level_gae
from rllib_llm.advantages.whitening import masked_moments, whiten_with_moments
from rllib_llm.connectors.learner.token_gae import GAESettings, token_penalties
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.distributed import all_reduce_sum

LEVELS = ("action", "token")
TEAM_REWARDS = ("mean", "sum")


@dataclasses.dataclass
class _Tokens:
    """Trained tokens of all policies in execution order: where each stands.

    Attributes:
        module: Number of the policy. [N]
        row: Row in its batch. [N]
        column: Column of that row. [N]
        joint: Episode. [N]
        message: Number of the message, from 0. [N]
        first: Index of each message's first token. [M]
        steps: Environment step of each message. [M]
        episodes: Episode of each message. [M]
    """

    module: np.ndarray
    row: np.ndarray
    column: np.ndarray
    joint: np.ndarray
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
    """Advantages along the execution order of an episode, from agent to agent.

    MARFT (Liao et al. 2025, arXiv:2504.16129): messages of all trained agents form one
    chain, ordered by the environment step in which they were said; those of one step
    are simultaneous. The reward of a step is the team's: what the environment paid to
    all agents between this step and the next (its mean or sum over agents).

    Values come from each policy's own critic, or from one that they share.

    Args:
        settings: Of each policy, by ModuleID; ``gamma`` and its like must agree.
        level: "action": one advantage and one value per message; "token": one per
            token, with ``gamma_token`` and ``lambda_token`` inside a message.
        team_reward: "mean" or "sum" over the agents.
        critic: ModuleID of a critic that policies share, None for their own.
        whiten_by: "batch", or "agent": each agent's advantages on their own.
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
        rl_module: Any,
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
        if not batches:  # the other Learners sum moments all the same
            self._whiten(batches, device)
            return batch
        tokens = _execution_order(batches)
        readers = batches if self.critic is None else [batch[self.critic]]
        seen_by = tokens if self.critic is None else _execution_order(readers)
        values = seen_by.read(readers, columns.VALUES)
        # A central critic values a step once: before anything of it is said.
        values[tokens.first] = values[seen_by.first[seen_by.message[tokens.first]]]
        advantages, targets = self._estimate(
            tokens,
            values,
            rewards=_team_rewards(tokens, episodes, self.team_reward),
            penalties=self._penalties(tokens, policies, batches),
            bootstraps=_bootstraps(readers, np.unique(tokens.episodes), episodes),
        )
        heads, valued = np.zeros((2, len(tokens.row)))
        heads[tokens.first], valued[seen_by.first] = 1.0, 1.0
        for index, data in enumerate(batches):
            self._store(data, Columns.ADVANTAGES, tokens.write(data, index, advantages))
            self._store(data, columns.MESSAGE_STARTS, tokens.write(data, index, heads))
        for index, data in enumerate(readers):
            found = seen_by.write(data, index, targets)
            self._store(data, Columns.VALUE_TARGETS, found)
            starts = seen_by.write(data, index, valued)
            self._store(data, columns.MESSAGE_STARTS, starts)
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
        chosen = next(iter(self.settings.values()))
        common = {
            "gamma": chosen.gamma,
            "lambda_": chosen.lambda_,
            "order": tokens.steps,
            "bootstrap_values": bootstraps,
        }
        if self.level == "token":
            return two_level_gae(
                rewards,
                values,
                tokens.message,
                tokens.episodes,
                gamma_token=chosen.gamma_token,
                lambda_token=chosen.lambda_token,
                token_rewards=penalties,
                **common,
            )
        paid = rewards + np.bincount(tokens.message, penalties, len(rewards))
        found = message_gae(paid, values[tokens.first], tokens.episodes, **common)
        advantages, targets = (each[tokens.message] for each in found)
        return advantages, targets

    def _penalties(
        self, tokens: _Tokens, policies: list[str], batches: list[dict[str, Any]]
    ) -> np.ndarray:
        """Return what departing from the reference costs each token. [N]"""
        out = np.zeros(len(tokens.row))
        for index, (module_id, data) in enumerate(zip(policies, batches, strict=True)):
            here = tokens.module == index
            cost = token_penalties(data, self.settings[module_id])
            out[here] = cost[tokens.row[here], tokens.column[here]]
        return out

    def _whiten(self, batches: list[dict[str, Any]], device: torch.device) -> None:
        """Standardise advantages over all Learners, by agent or over everything."""
        if not all(settings.whiten for settings in self.settings.values()):
            return
        masks = [d[Columns.LOSS_MASK].cpu().numpy() for d in batches]
        agents = [d[columns.AGENT_INDEX].cpu().numpy()[:, None] for d in batches]
        arrays = [d[Columns.ADVANTAGES].double().cpu().numpy() for d in batches]
        if self.level == "action":  # a long message counts as one
            masks = [
                m & (d[columns.MESSAGE_STARTS].cpu().numpy() > 0)
                for m, d in zip(masks, batches, strict=True)
            ]
        count = 1
        if self.whiten_by == "agent":
            most = max((int(a.max(initial=-1)) for a in agents), default=-1) + 1
            count = int(all_reduce_sum([most], device)[0])
        for agent in range(count):
            by_agent = self.whiten_by == "agent"
            parts = [
                m & (a == agent) if by_agent else m
                for m, a in zip(masks, agents, strict=True)
            ]
            found = [masked_moments(x, p) for x, p in zip(arrays, parts, strict=True)]
            sums = np.sum([(0.0, 0.0, 0.0), *found], axis=0)
            moments = tuple(all_reduce_sum(sums.tolist(), device))
            if not moments[0]:
                continue
            for data, array, place in zip(batches, arrays, agents, strict=True):
                mine = data[Columns.LOSS_MASK].cpu().numpy()
                mine = mine & (place == agent) if by_agent else mine
                array[mine] = whiten_with_moments(array, mine, moments)[mine]
        for data, array in zip(batches, arrays, strict=True):
            self._store(data, Columns.ADVANTAGES, array)

    @staticmethod
    def _store(data: dict[str, Any], key: str, array: np.ndarray) -> None:
        device = data[Columns.LOSS_MASK].device
        data[key] = torch.as_tensor(array, dtype=torch.float32, device=device)


def _execution_order(batches: list[dict[str, Any]]) -> _Tokens:
    """Find all trained tokens, sorted by episode, environment step and agent."""
    found = []
    for index, data in enumerate(batches):
        row, column = np.nonzero(data[Columns.LOSS_MASK].cpu().numpy())
        joint = data[columns.MULTI_AGENT_EPISODE_INDEX].cpu().numpy()[row]
        agent = data[columns.AGENT_INDEX].cpu().numpy()[row]
        step = data[columns.TURN_STEPS].cpu().numpy()[row, column]
        found.append((np.full(len(row), index), row, column, joint, step, agent))
    module, row, column, joint, step, agent = (
        np.concatenate(each) for each in zip(*found, strict=True)
    )
    # A message stands in one row; a central critic's rows hold all of an episode.
    order = np.lexsort((column, row, agent, step, joint))
    module, row, column, joint, step, agent = (
        each[order] for each in (module, row, column, joint, step, agent)
    )
    key = np.stack((joint, step, agent))
    is_first = np.ones(len(row), bool)
    is_first[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    first = np.flatnonzero(is_first)
    return _Tokens(
        module,
        row,
        column,
        joint,
        message=np.cumsum(is_first) - 1,
        first=first,
        steps=step[first],
        episodes=joint[first],
    )


def _team_rewards(tokens: _Tokens, episodes: list[Any], how: str) -> np.ndarray:
    """Return what the team earned after each message. [M]

    What was paid in a step without a trained message belongs to the one before it, or
    to the first; messages of one step share what it earned.
    """
    out = np.zeros(len(tokens.first))
    for joint in np.unique(tokens.episodes):
        episode = episodes[joint]
        here = np.flatnonzero(tokens.episodes == joint)
        steps = tokens.steps[here]
        reward_log = episode.custom_data[columns.REWARD_LOG]
        team = {*episode.agent_episodes, *(agent for _, agent, _ in reward_log)}
        agents = len(team) if how == "mean" else 1
        for env_t, _, reward in reward_log:
            before = steps[steps < env_t]
            last = before.max() if len(before) else steps.min()
            sharers = here[steps == last]
            out[sharers] += reward / agents / len(sharers)
    return out


def _bootstraps(
    batches: list[dict[str, Any]], valued: np.ndarray, episodes: list[Any]
) -> np.ndarray:
    """Return the next speakers' mean value after each cut episode, else 0. [E]

    Where no next speaker has a row (it never spoke, or cannot read on), it is the mean
    over all who were cut.
    """
    totals, counts = np.zeros((2, len(valued))), np.zeros((2, len(valued)))
    for data in batches:
        column = data[columns.BOOTSTRAP_COLUMN].cpu().numpy()
        asked = data[columns.BOOTSTRAPS_AGENT_TURN].cpu().numpy()
        values = data[columns.VALUES].double().cpu().numpy()
        joint = data[columns.MULTI_AGENT_EPISODE_INDEX].cpu().numpy()
        for row in np.flatnonzero((column >= 0) & np.isin(joint, valued)):
            # An agent may have been cut early in an episode that others finished.
            verdict = episode_data(episodes[joint[row]]).stop_policy
            if verdict is StopPolicy.BOOTSTRAP:
                place = np.searchsorted(valued, joint[row])
                which = (0, 1) if asked[row] else (0,)
                totals[which, place] += values[row, column[row]]
                counts[which, place] += 1
    means = totals / np.maximum(counts, 1)
    return np.where(counts[1] > 0, means[1], means[0])
