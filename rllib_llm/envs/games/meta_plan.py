"""Meta plan: a planner writes a plan, several executors each play the task with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.data.added_texts import with_texts
from rllib_llm.envs.games.team import make_task
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env

PLANNER, HEADING = "planner_0", "Plan:"
MOST_EXECUTORS = 16


@register_text_env("meta_plan-v0")
class MetaPlan(MultiAgentTextEnv):
    """Write a plan; executors play the task with it, each alone. Return their mean.

    The planner reads the task's first observation and acts once. Every executor then
    plays the same instance of the task, with the plan before its first observation, and
    gets its own return. The planner gets the mean of all returns: the Monte-Carlo value
    of the plan under the executors' policy (MPO, arXiv:2503.02682, of which only a
    summary was read). Success is that of executor_0.
    """

    simultaneous = True
    max_turns = 256  # the task has its own limit
    format_hint = "Please write a plan."

    def __init__(self, env_config: dict[str, Any] | None = None):
        super().__init__(env_config)
        self.late_agents = tuple(self.possible_agents[1:])

    def agent_names(self, executors: int = 4, **_: Any) -> list[str]:
        """Return the planner and so many executors."""
        count = require_int("executors", executors, 1, MOST_EXECUTORS)
        return [PLANNER, *(f"executor_{i}" for i in range(count))]

    def start(
        self,
        rng: np.random.Generator,
        task: str = "ground_rules-v0",
        task_config: Mapping[str, Any] | None = None,
        executors: int = 4,
    ) -> None:
        """Start the task.

        Args:
            rng: Generator of the instance.
            task: Name of a registered single-agent environment.
            task_config: Options of the task.
            executors: Number of executors, from 1 to 16.
        """
        seed = int(rng.integers(2**31))
        self.task = make_task(task, task_config)
        self.opening, _ = self.task.reset(seed=seed, options={"split": self.split})
        self.plan: str | None = None
        self.copies = {a: copy.deepcopy(self.task) for a in self.possible_agents[1:]}
        self.news: dict[str, str] = {}
        self.steps = dict.fromkeys(self.copies, 0)
        self.returns = dict.fromkeys(self.copies, 0.0)
        self.solved: dict[str, bool] = {}

    @property
    def lines(self) -> list[str]:
        """The plan's lines that are not empty."""
        return [line for line in (self.plan or "").splitlines() if line.strip()]

    def prompt_for(self, agent: str) -> str:
        """Return the task, to executors after the plan, or what their action led to."""
        if agent == PLANNER:
            return "" if self.plan is not None else f"{self.opening}\nPlan."
        return self.news.get(agent) or with_texts(self.lines, self.opening, HEADING)

    def apply(self, agent: str, action: str) -> Outcome:
        """Hand the plan over, or play a turn of the executor's copy."""
        if agent == PLANNER:
            self.plan = action
            for executor in self.copies:
                self.join(executor)
            return Outcome(terminated=[PLANNER])
        observation, reward, terminated, truncated, info = self.copies[agent].step(
            action
        )
        self.news[agent] = observation
        self.steps[agent] += 1
        self.returns[agent] += reward
        if terminated or truncated:
            self.solved[agent] = bool(info.get("success"))
        return Outcome(
            {agent: reward},
            terminated=[agent] if terminated else False,
            truncated=[agent] if truncated and not terminated else False,
        )

    def end_round(self) -> Outcome | None:
        """Reward the planner once all executors have ended."""
        if len(self.solved) < len(self.copies):
            return None
        count = len(self.copies)
        return Outcome(
            {PLANNER: sum(self.returns.values()) / count},
            success=self.solved["executor_0"],
            metrics={"solved_frac": sum(self.solved.values()) / count},
        )

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Write down the actions of the task's expert; follow the plan line by line.

        An executor without a line that is an action takes any.
        """
        if agent == PLANNER:
            return "\n".join(_expert_actions(copy.deepcopy(self.task), rng))
        task, step = self.copies[agent], self.steps[agent]
        line = self.lines[step] if step < len(self.lines) else ""
        return line if task.parse(line) is not None else task.random_action(rng)

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Write any action of the task."""
        return self.copies.get(agent, self.task).random_action(rng)


def _expert_actions(task: Any, rng: np.random.Generator) -> list[str]:
    """Return the actions of a task's expert up to the end."""
    actions: list[str] = []
    is_over = False
    while not is_over:
        actions.append(task.expert_action(rng))
        *_, terminated, truncated, _ = task.step(actions[-1])
        is_over = terminated or truncated
    return actions
