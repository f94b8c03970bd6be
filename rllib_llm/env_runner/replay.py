"""Replay of games with completions that were sampled in different rollouts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Task
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter

_MAX_CHARS = 60  # of each text in a message
_REMEDY = "Use joint='aligned', or a game whose agents act simultaneously."


class Replay:
    """Computes the returns of a joint action combined from different rollouts.

    The game is reset with the task's seed and options, and every agent repeats the
    completions of its rollout; nothing is sampled. The result represents the policies
    only if each agent observes the same texts as in its own rollout, so anything else
    is an error. Equal completions are played once.

    Args:
        make_env: Builds the environment, at the first game.
        max_turns: Steps after which the run truncates episodes; None means no limit.

    Attributes:
        num_games: Games played since :meth:`forget`.
        seconds: Wall time of these games.
    """

    def __init__(self, make_env: Callable[[], Any], max_turns: int | None = None):
        self._make_env, self._max_turns = make_env, max_turns
        self._env: Any = None
        self.forget()

    def forget(self) -> None:
        """Clear the cached games and the counters, at the start of an iteration."""
        self._played: dict[Any, tuple[dict[str, float], dict[str, list[str]]]] = {}
        self.num_games, self.seconds = 0, 0.0

    def __call__(self, players: Sequence[Trajectory]) -> dict[str, float]:
        """Play one game.

        Args:
            players: One trajectory of each agent, all of one task.

        Returns:
            The return of each agent that acted, by AgentID.

        Raises:
            ConfigError: If an agent observes another text than in its rollout, must act
                more often, or has no language model as its policy.
        """
        completions = {p.agent_id: tuple(p.completions) for p in players}
        # By the task's group: rollouts of it start from the same state.
        key = (players[0].task.group_id, tuple(sorted(completions.items())))
        if key not in self._played:
            started = time.perf_counter()
            self._played[key] = self._play(players[0].task, completions)
            self.num_games += 1
            self.seconds += time.perf_counter() - started
        returns, observed = self._played[key]
        # Also for cached games: equal completions may come from rollouts with
        # different observations.
        for player in players:
            replayed = observed.get(player.agent_id, [])
            # The game may end earlier than the rollout did: zip without strict.
            for turn, (now, then) in enumerate(
                zip(replayed, player.observations, strict=False)
            ):
                if now != then:
                    raise _observation_differs(player.agent_id, turn, now, then)
        return dict(returns)

    def _play(
        self, task: Task, completions: dict[str, tuple[str, ...]]
    ) -> tuple[dict[str, float], dict[str, list[str]]]:
        """Return the return and the observations of each agent that acted."""
        if self._env is None:
            self._env = self._make_env()
        if agents_of(self._env) is None:
            raise ConfigError(
                "joint='cross' combines completions of several agents, but the "
                "environment has one agent. Use joint='aligned'."
            )
        limit = min(self._max_turns or math.inf, task.max_turns or math.inf)
        step = self._env.reset(seed=task.seed, options=dict(task.options))
        returns: dict[str, float] = dict.fromkeys(self._env.possible_agents, 0.0)
        observed: dict[str, list[str]] = {}
        num_steps = 0
        while True:
            for agent, reward in step.rewards:
                returns[agent] += reward
            if step.is_over or num_steps >= limit:
                return {agent: returns[agent] for agent in observed}, observed
            actions = {
                agent: self._next_completion(agent, text, completions, observed)
                for agent, text in step.observations.items()
            }
            step = self._env.step(actions)
            num_steps += 1

    @staticmethod
    def _next_completion(
        agent: str,
        text: str,
        completions: dict[str, tuple[str, ...]],
        observed: dict[str, Any],
    ) -> str:
        """Record the observation ``text``; return the agent's next completion."""
        earlier = observed.setdefault(agent, [])
        if agent not in completions:
            raise ConfigError(
                "joint='cross' replays games with sampled completions, but nothing was "
                f"sampled for {agent!r}. Map every agent to a language model of this "
                "run, or use joint='aligned'."
            )
        if len(earlier) == len(completions[agent]):
            raise ConfigError(
                f"{agent!r} must act again after its {len(earlier)} turns, because the "
                "game continues with the other agents' completions. joint='cross' can "
                f"combine only the last joint turn of a game. {_REMEDY}"
            )
        earlier.append(text)
        return completions[agent][len(earlier) - 1]


def _observation_differs(agent: str, turn: int, now: str, then: str) -> ConfigError:
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(now, then, strict=False)
    )
    same = len(list(pairs))
    start = max(0, same - _MAX_CHARS // 2)
    then, now = (text[start : start + _MAX_CHARS] for text in (then, now))
    return ConfigError(
        f"{agent!r} observed ...{then!r} in turn {turn} of its rollout, but observes "
        f"...{now!r} when the others repeat completions of other rollouts. "
        "joint='cross' can combine completions only if no agent observes another "
        f"agent's completion of the same joint turn. {_REMEDY}"
    )


def random_episodes(
    env: MultiAgentAdapter, *, tasks: int = 4, rollouts: int = 2
) -> list[Trajectory]:
    """Play first joint turns with random valid actions, to check a Replay before a run.

    Args:
        env: A MultiAgentAdapter whose game has ``random_action``.
        tasks: Number of tasks.
        rollouts: Rollouts per task.

    Returns:
        One trajectory per agent and rollout. A rollout ends when all agents have acted
        or the game is over; ``max_turns`` of its task holds its length. Empty if the
        game has no ``random_action``.
    """
    if not hasattr(env.unwrapped, "random_action"):
        return []
    trajectories: list[Trajectory] = []
    for i in range(tasks * rollouts):
        task = Task(i // rollouts, i % rollouts, seed=i // rollouts)
        try:
            trajectories += _random_episode(env, task, i)
        except NotImplementedError:  # the base class has the method, the game does not
            return []
    return trajectories


def _random_episode(
    env: MultiAgentAdapter, task: Task, episode: int
) -> list[Trajectory]:
    rng = np.random.default_rng([episode, 1])
    step = env.reset(seed=task.seed, options=dict(task.options))
    trajectories: dict[str, Trajectory] = {}
    num_steps = 0
    while not step.is_over and len(trajectories) < len(env.possible_agents):
        actions = {}
        for agent, text in step.observations.items():
            if agent not in trajectories:
                number = env.possible_agents.index(agent)
                trajectories[agent] = Trajectory(
                    task, episode, number, agent, "", [], [], [], [], [], []
                )
            trajectory, actions[agent] = (
                trajectories[agent],
                env.unwrapped.random_action(agent, rng),
            )
            trajectory.observations.append(text)
            trajectory.completions.append(actions[agent])
            trajectory.rewards.append(0.0)
            trajectory.steps.append(num_steps)
            trajectory.num_tokens.append(1)
            trajectory.invalid.append(False)
        step = env.step(actions)
        num_steps += 1
        for agent, reward in step.rewards:
            if agent in trajectories:
                trajectories[agent].rewards[-1] += reward
    # The replay must stop where this rollout did, or agents would have to act again.
    for trajectory in trajectories.values():
        trajectory.task = dataclasses.replace(task, max_turns=num_steps)
    return list(trajectories.values())
