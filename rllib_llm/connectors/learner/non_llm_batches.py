"""Last learner connector: training batches of non-LLM RLModules, built by RLlib's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
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
from rllib_llm.data.micro_batches import HostColumns
from rllib_llm.data.types import StopPolicy
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

    from rllib_llm.types import Device, Episode


class NonLLMBatches(ConnectorV2):
    """Add the batches of RLModules with numeric observations, one row per time step.

    RLlib's PPO connectors build them, in RLlib's order: an extra time step for the
    bootstrap value, observations and columns, batches, tensors, GAE. They receive
    copies of these agents' parts alone. Masked episodes are left out; a truncated
    episode that counts as final is passed on as terminated.

    Args:
        discounts: ``gamma`` and ``lambda_`` of each trained policy.
        device: Device of the learner.
    """

    def __init__(
        self, discounts: Mapping[str, tuple[float, float]], device: Device | None
    ):
        super().__init__()
        self.module_ids = tuple(sorted(discounts))
        self._components: list[ConnectorV2] = [
            AddOneTsToEpisodesAndTruncate(),
            AddObservationsFromEpisodesToBatch(as_learner_connector=True),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(
                rl_module_specs=set(discounts),
                agent_to_module_mapping_fn=None,  # the episodes hold the ModuleIDs
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
        rl_module: MultiRLModule,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        for module_id in self.module_ids:
            numbered_parts = [
                (number, part)
                for number, episode in enumerate(episodes)
                for part in _parts(episode, module_id)
            ]
            if numbered_parts:
                parts = [stock_episode(part) for _, part in numbered_parts]
                data = self._batch(rl_module, module_id, parts)
                # One more per part: the time step that RLlib's connector appends.
                owners = [
                    number
                    for number, part in numbered_parts
                    for _ in range(len(part) + 1)
                ]
                device = data[Columns.LOSS_MASK].device
                owner = np.asarray(owners)
                data[columns.MULTI_AGENT_EPISODE_INDEX] = upload(owner, device)
                # RLlib's connectors upload all else; the mask is read back once.
                data[columns.HOST] = HostColumns.of(data)
                batch[module_id] = data
        return batch

    def _batch(
        self, rl_module: MultiRLModule, module_id: str, parts: list[SingleAgentEpisode]
    ) -> dict[str, Any]:
        out: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        # No gradient: the connector for GAE calls the critic.
        for component in (*self._components, self._gae[module_id]):
            with torch.no_grad():
                out = component(
                    rl_module=rl_module, batch=out, episodes=parts, shared_data=shared
                )
        return dict(out[module_id])


def _parts(episode: Episode, module_id: str) -> list[Any]:
    parts = getattr(episode, "agent_episodes", {}).values()
    of_module = [
        part
        for part in parts
        if part.module_id == module_id and len(part)
        if episode_data(part).stop_policy is not StopPolicy.MASK
    ]
    return sorted(of_module, key=lambda part: episode_data(part).agent_index)


def stock_episode(part: SingleAgentEpisode) -> SingleAgentEpisode:
    """Return an agent's part in the form that RLlib's runner records."""
    # RLlib bootstraps every truncated episode; the stop policy may say otherwise.
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
