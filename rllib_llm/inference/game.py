"""One episode of any environment, step by step: for people, scripts and policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID

from rllib_llm.data.types import StopReason, Task
from rllib_llm.env_runner.agents import agents_of, as_playable
from rllib_llm.env_runner.tasks import stable_seed
from rllib_llm.envs.multi_agent_adapter import MultiAgentStep

_MOVES = {"expert": "expert_action", "random": "random_action"}


def players_of(env: Any) -> list[str]:
    """Return all agents in declared order; a single one is RLlib's default agent."""
    return agents_of(env) or [DEFAULT_AGENT_ID]


class Game:
    """An environment of Gymnasium or PettingZoo, played alike.

    A single agent is called ``"default_agent"``, as in RLlib.

    Args:
        env: The environment.
        task: What to play; the episode has begun when this returns.

    Attributes:
        agents: All agents, in declared order.
        observations: What those read that must act now, by AgentID.
        infos: What came beside it, by AgentID.
        is_over: Whether the episode has ended.
        returns: What each agent has earned so far.
        turn: Steps so far.
        rewards: What the last step paid, by AgentID.
        last_words: What a single agent is told in the end.
        success: Whether the task was solved, where that is defined.
        stop_reason: Why it ended.
    """

    def __init__(self, env: Any, task: Task):
        self.env, self.task = as_playable(env), task
        self.is_single = agents_of(self.env) is None
        self.agents = players_of(self.env)
        self.turn, self.is_over = 0, False
        self.returns = dict.fromkeys(self.agents, 0.0)
        self.last_words: str | None = None
        self.success: bool | None = None
        self.stop_reason: StopReason | None = None
        self._read(self.env.reset(seed=task.seed, options=dict(task.options)))

    def step(self, actions: Mapping[str, Any]) -> None:
        """Let exactly the agents of the last observations act."""
        self.turn += 1
        if self.is_single:
            (action,) = actions.values()
            self._read(self.env.step(action))
        else:
            self._read(self.env.step(dict(actions)))

    def move(self, kind: str, agent: str) -> Any:
        """Return what a scripted policy of the environment would do now.

        Args:
            kind: ``"expert"`` or ``"random"``.
            agent: Whose turn it is.

        Raises:
            NotImplementedError: If the environment has none.
        """
        rng = np.random.default_rng(stable_seed(self.task.seed, agent, self.turn))
        env = self.env.unwrapped
        if self.is_single:
            return getattr(env, _MOVES[kind])(rng)
        if kind == "random" and self.reads_numbers(agent):
            return self.env.random_numbers(agent, rng)
        if not hasattr(env, _MOVES[kind]):
            raise NotImplementedError(f"{env} has no scripted {kind} policy.")
        return getattr(env, _MOVES[kind])(agent, rng)

    def reads_numbers(self, agent: str) -> bool:
        """Whether the agent observes and acts in numbers."""
        return not self.is_single and self.env.number_spaces(agent) is not None

    def _read(self, told: Any) -> None:
        if not self.is_single:
            self._take(told)
            return
        if len(told) == 2:
            observation, info = told
            reward, over = 0.0, False
        else:
            observation, reward, terminated, truncated, info = told
            over = terminated or truncated
        agent = DEFAULT_AGENT_ID
        reason = None
        if over:
            self.last_words = observation
            ended = StopReason.TERMINATED if terminated else StopReason.MAX_TURNS
            reason = info.get("stop_reason") or ended
        self._take(
            MultiAgentStep(
                observations={} if over else {agent: observation},
                rewards=[(agent, float(reward))] if reward else [],
                infos={agent: info},
                is_over=over,
                success=info.get("success"),
                stop_reason=reason,
            )
        )

    def _take(self, told: MultiAgentStep) -> None:
        self.observations, self.infos = dict(told.observations), told.infos
        self.rewards: dict[str, float] = {}
        for agent, reward in told.rewards:
            self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
            self.returns[agent] += reward
        self.is_over = told.is_over
        if told.success is not None:
            self.success = told.success
        if told.stop_reason is not None:
            self.stop_reason = StopReason(told.stop_reason)
