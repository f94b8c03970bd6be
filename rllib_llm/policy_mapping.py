"""Mapping of agents to policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.imports import import_object

if TYPE_CHECKING:
    from rllib_llm.types import Episode, LLMConfig


class MappedPolicies:
    """A ``policy_mapping_fn`` given as a table.

    Args:
        table: Policies by agent. ``solver`` also covers ``solver_0``, ``solver_1`` and
            so on; ``"*"`` covers all other agents.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = dict(table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MappedPolicies) and self.table == other.table

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.table.items())))

    def __call__(
        self, agent_id: str, episode: Episode | None = None, **kwargs: Any
    ) -> str:
        """Return the agent's policy.

        Raises:
            ConfigError: If the table has no entry for the agent.
        """
        stem = agent_id.rpartition("_")[0]
        for name in (agent_id, stem, "*"):
            if name in self.table:
                return self.table[name]
        raise ConfigError(
            f"policy_mapping_fn maps no policy to the agent {agent_id!r}. "
            f"{did_you_mean(agent_id, self.table)} '*' stands for all others."
        )


def imported(what: str, path: str) -> Any:
    """Import the object given as ``"package.module:name"``.

    Raises:
        ConfigError: If it does not exist.
    """
    return import_object(path, f"multi_agent.{what}")


def mapped_policies(config: LLMConfig, agents: list[str]) -> dict[str, str]:
    """Return every agent's policy in an episode of the first task."""
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    episode = MultiAgentEpisode()
    episode_data(episode).task = config.build_task_source().next_groups(1)[0]
    policies = {}
    for agent in agents:
        module_id = config.policy_mapping_fn(agent, episode)
        if module_id not in config.module_ids:
            raise ConfigError(
                f"policy_mapping_fn maps the agent {agent!r} to {module_id!r}, which "
                f"is no policy. {did_you_mean(str(module_id), config.module_ids)}"
            )
        policies[agent] = module_id
    return policies
