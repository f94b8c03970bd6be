"""Policy assignments of tasks, so that EnvRunners need no league."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rllib_llm.data.episode_data import task_of
from rllib_llm.data.types import Task
from rllib_llm.env_runner.task_groups import TaskSource

if TYPE_CHECKING:
    from rllib_llm.types import Episode

AssignAgents = Callable[[Task], dict[str, str]]


class AssignedTasks(TaskSource):
    """TaskSource whose tasks assign a policy to each agent.

    Args:
        args: Arguments of TaskSource.
        agent: Returns a task's policy assignment.
        kwargs: Keyword arguments of TaskSource.
    """

    def __init__(self, *args: Any, agent: AssignAgents, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent = agent

    def _task(self, group: int, rollout: int, index: int, number: int) -> Task:
        task = super()._task(group, rollout, index, number)
        # In the task, because the driver has the league and EnvRunners may be remote.
        return dataclasses.replace(task, assignment=self.agent(task))


def assigned_policy(agent_id: str, episode: Episode, **kwargs: Any) -> str:
    """Return the policy that the episode's task names (a ``policy_mapping_fn``)."""
    return task_of(episode).assignment[agent_id]


@dataclasses.dataclass(frozen=True)
class TakeTurns:
    """Assignment for evaluation: the learner is each agent in turn.

    Attributes:
        policy: The policy in training.
        opponent: Policy of the other agents.
        agents: The agents to which the league assigns policies.
        fixed: Policies of all further agents.
    """

    policy: str
    opponent: str
    agents: tuple[str, ...]
    fixed: dict[str, str]

    def __call__(self, task: Task) -> dict[str, str]:
        """Return the policy assignment of ``task``."""
        # By group: all rollouts of a task have the same role, so their returns are
        # comparable.
        learner_agent = self.agents[task.group_id % len(self.agents)]
        others = dict.fromkeys(self.agents, self.opponent)
        return {**self.fixed, **others, learner_agent: self.policy}
