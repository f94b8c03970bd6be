"""Game: one episode of any environment behind one interface, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID

from rllib_llm.data.types import StopReason, Task
from rllib_llm.env_runner.agents import agents_of, as_playable
from rllib_llm.envs.multi_agent_adapter import MultiAgentStep
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    from rllib_llm.types import PlayableEnv

_MOVES = {"expert": "expert_action", "random": "random_action"}


def players_of(env: PlayableEnv) -> list[str]:
    """Return all agents in declared order; a single one is RLlib's default agent."""
    return agents_of(env) or [DEFAULT_AGENT_ID]


class Game:
    """Episode of a Gymnasium or PettingZoo environment.

    A single agent is called ``"default_agent"``, as in RLlib.

    Args:
        env: The environment.
        task: The task; the constructor resets the environment with it.

    Attributes:
        agents: All agents, in declared order.
        observations: Observations of the agents that must act, by AgentID.
        infos: Their infos, by AgentID.
        is_over: Whether the episode has ended.
        returns: Each agent's return so far.
        turn: Number of steps so far.
        rewards: Rewards of the last step, by AgentID.
        final_observation: Final observation of a single agent.
        success: Whether the task was solved; None if the environment does not say.
        stop_reason: Stop reason of the episode.
    """

    def __init__(self, env: PlayableEnv, task: Task):
        self.env, self.task = as_playable(env), task
        self.is_single = agents_of(self.env) is None
        self.agents = players_of(self.env)
        self.turn, self.is_over = 0, False
        self.returns = dict.fromkeys(self.agents, 0.0)
        self.final_observation: str | None = None
        self.success: bool | None = None
        self.stop_reason: StopReason | None = None
        self._read(self.env.reset(seed=task.seed, options=dict(task.options)))

    def step(self, actions: Mapping[str, Any]) -> None:
        """Step the environment with an action of each agent in ``observations``."""
        self.turn += 1
        if self.is_single:
            (action,) = actions.values()
            self._read(self.env.step(action))
        else:
            self._read(self.env.step(dict(actions)))

    def move(self, kind: str, agent: str) -> Any:
        """Return the action of a scripted policy of the environment.

        Args:
            kind: ``"expert"`` or ``"random"``.
            agent: The acting agent.

        Raises:
            NotImplementedError: If the environment has no such policy.
        """
        # Seeded by the turn, so that a replayed game repeats its actions.
        rng = np.random.default_rng(stable_seed(self.task.seed, agent, self.turn))
        env = self.env.unwrapped
        if self.is_single:
            return getattr(env, _MOVES[kind])(rng)
        if kind == "random" and self.reads_numbers(agent):
            return self.env.random_numbers(agent, rng)
        if not hasattr(env, _MOVES[kind]):
            raise NotImplementedError(
                f"{env} has no scripted {kind} policy; it needs {_MOVES[kind]}()."
            )
        return getattr(env, _MOVES[kind])(agent, rng)

    def reads_numbers(self, agent: str) -> bool:
        """Return whether the agent has numeric spaces instead of text."""
        return not self.is_single and self.env.number_spaces(agent) is not None

    def _read(self, result: Any) -> None:
        """Record the result of reset() or step(), converting that of Gymnasium."""
        if not self.is_single:
            self._take(result)
            return
        if len(result) == 2:  # of reset()
            observation, info = result
            reward, over = 0.0, False
        else:
            observation, reward, terminated, truncated, info = result
            over = terminated or truncated
        agent = DEFAULT_AGENT_ID
        reason = None
        if over:
            self.final_observation = observation
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

    def _take(self, step: MultiAgentStep) -> None:
        self.observations, self.infos = dict(step.observations), step.infos
        self.rewards: dict[str, float] = {}
        for agent, reward in step.rewards:
            self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
            self.returns[agent] += reward
        self.is_over = step.is_over
        if step.success is not None:
            self.success = step.success
        if step.stop_reason is not None:
            self.stop_reason = StopReason(step.stop_reason)
