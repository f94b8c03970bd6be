"""Last learner connector: what classic RLModules learn from, made by RLlib's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.connectors.common import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
)
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    GeneralAdvantageEstimation,
)
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.annotations import override

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy


class NonLLMBatches(ConnectorV2):
    """Add the batches of RLModules that read numbers, one row per time step.

    RLlib's connectors of PPO make them, in RLlib's order: a time step more for the
    bootstrap value, observations and columns, batches, tensors, GAE. They see copies of
    these agents' parts alone. What a stop policy masks is left out; an episode that was
    cut short but counts as final is handed over as terminated.

    Args:
        discounts: ``gamma`` and ``lambda_`` of each policy that is trained.
        device: Where the learner computes.
    """

    def __init__(self, discounts: Mapping[str, tuple[float, float]], device: Any):
        super().__init__()
        self.module_ids = tuple(sorted(discounts))
        self._components: list[ConnectorV2] = [
            AddOneTsToEpisodesAndTruncate(),
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(
                rl_module_specs=set(discounts),
                agent_to_module_mapping_fn=None,  # the episodes know
                as_learner_connector=True,
            ),
            BatchIndividualItems(multi_agent=True),
            NumpyToTensor(as_learner_connector=True, device=device),
        ]
        self._gae = {
            module_id: GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_)
            for module_id, (gamma, lambda_) in discounts.items()
        }

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
        for module_id in self.module_ids:
            found = [
                (joint, part)
                for joint, episode in enumerate(episodes)
                for part in _parts(episode, module_id)
            ]
            if found:
                parts = [stock_episode(part) for _, part in found]
                data = self._batch(rl_module, module_id, parts)
                # With the time step that was added to each.
                owners = [joint for joint, part in found for _ in range(len(part) + 1)]
                device = data[Columns.LOSS_MASK].device
                data[columns.MULTI_AGENT_EPISODE_INDEX] = torch.tensor(
                    owners, device=device
                )
                batch[module_id] = data
        return batch

    def _batch(
        self, rl_module: Any, module_id: str, parts: list[SingleAgentEpisode]
    ) -> dict[str, Any]:
        made: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for component in (*self._components, self._gae[module_id]):
            with torch.no_grad():
                made = component(
                    rl_module=rl_module, batch=made, episodes=parts, shared_data=shared
                )
        return dict(made[module_id])


def _parts(episode: Any, module_id: str) -> list[Any]:
    parts = getattr(episode, "agent_episodes", {}).values()
    mine = [
        part
        for part in parts
        if part.module_id == module_id and len(part)
        if episode_data(part).stop_policy is not StopPolicy.MASK
    ]
    return sorted(mine, key=lambda part: episode_data(part).agent_index)


def stock_episode(part: Any) -> SingleAgentEpisode:
    """Return an agent's part as RLlib's own runner would have recorded it."""
    bootstraps = episode_data(part).stop_policy is StopPolicy.BOOTSTRAP
    truncated = part.is_truncated and bootstraps
    outputs = (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)
    return SingleAgentEpisode(
        observations=list(part.get_observations()),
        actions=list(part.get_actions()),
        rewards=list(part.get_rewards()),
        infos=[{}] * (len(part) + 1),
        terminated=not truncated,
        truncated=truncated,
        extra_model_outputs={
            name: list(part.get_extra_model_outputs(name)) for name in outputs
        },
        len_lookback_buffer=0,
        agent_id=part.agent_id,
        module_id=part.module_id,
        multi_agent_episode_id=part.multi_agent_episode_id,
    )
