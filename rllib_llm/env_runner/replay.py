"""Games played again, with texts that were sampled in different rollouts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Task
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError

_SHOWN = 60
_ALIGNED = "Use joint='aligned', or a game whose agents answer at once."


class Replay:
    """Says what agents would have earned if these of their rollouts had met.

    The task's game is begun with its seed and options, and every agent says what it
    said in its rollout; nothing is sampled. That stands for what the policies do only
    where each agent reads what it read when it said it, so anything else is an error.
    A game is played once for equal texts.

    Args:
        make_env: Builds the environment, at the first game.
        max_turns: Steps after which the run cuts episodes; None: never.

    Attributes:
        num_games: Games played since :meth:`forget`.
        seconds: Wall time of these.
    """

    def __init__(self, make_env: Callable[[], Any], max_turns: int | None = None):
        self._make_env, self._max_turns = make_env, max_turns
        self._env: Any = None
        self.forget()

    def forget(self) -> None:
        """Begin a new iteration: earlier games are not needed any more."""
        self._played: dict[Any, tuple[dict[str, float], dict[str, list[str]]]] = {}
        self.num_games, self.seconds = 0, 0.0

    def __call__(self, players: Sequence[Trajectory]) -> dict[str, float]:
        """Play one game.

        Args:
            players: One trajectory of each agent, all of one task.

        Returns:
            What each agent that acted earned; who is not asked any more before the
            game ends is left out.

        Raises:
            ConfigError: If someone reads something else than in its own rollout, is
                asked more often, or is played by no language model.
        """
        said = {p.agent_id: tuple(p.completions) for p in players}
        key = (players[0].task.group_id, tuple(sorted(said.items())))
        if key not in self._played:
            started = time.perf_counter()
            self._played[key] = self._play(players[0].task, said)
            self.num_games += 1
            self.seconds += time.perf_counter() - started
        earned, read = self._played[key]
        for player in players:
            now = read.get(player.agent_id, [])
            for turn, told in enumerate(zip(now, player.observations, strict=False)):
                if told[0] != told[1]:
                    raise _reads_others(player.agent_id, turn, *told)
        return dict(earned)

    def _play(
        self, task: Task, said: dict[str, tuple[str, ...]]
    ) -> tuple[dict[str, float], dict[str, list[str]]]:
        """Return what each agent earned and read."""
        if self._env is None:
            self._env = self._make_env()
        if agents_of(self._env) is None:
            raise ConfigError(
                "joint='cross' combines what several agents said, but the environment "
                "has one. Use joint='aligned'."
            )
        limit = min(self._max_turns or math.inf, task.max_turns or math.inf)
        told = self._env.reset(seed=task.seed, options=dict(task.options))
        earned: dict[str, float] = dict.fromkeys(self._env.possible_agents, 0.0)
        read: dict[str, list[str]] = {}
        steps = 0
        while True:
            for agent, reward in told.rewards:
                earned[agent] += reward
            if told.is_over or steps >= limit:
                return {agent: earned[agent] for agent in read}, read
            actions = {
                agent: self._answer(agent, text, said, read)
                for agent, text in told.observations.items()
            }
            told = self._env.step(actions)
            steps += 1

    @staticmethod
    def _answer(
        agent: str, text: str, said: dict[str, tuple[str, ...]], read: dict[str, Any]
    ) -> str:
        before = read.setdefault(agent, [])
        if agent not in said:
            raise ConfigError(
                f"joint='cross' plays games again with what was sampled, but nothing "
                f"was sampled for {agent!r}. Let a language model of this run play "
                "every agent, or use joint='aligned'."
            )
        if len(before) == len(said[agent]):
            raise ConfigError(
                f"After {len(before)} turns {agent!r} is asked once more: with what "
                "the others said in other rollouts, the game goes on. Only the last "
                f"joint turn of a game can be combined. {_ALIGNED}"
            )
        before.append(text)
        return said[agent][len(before) - 1]


def _reads_others(agent: str, turn: int, now: str, then: str) -> ConfigError:
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(now, then, strict=False)
    )
    same = len(list(pairs))
    start = max(0, same - _SHOWN // 2)
    then, now = (text[start : start + _SHOWN] for text in (then, now))
    return ConfigError(
        f"{agent!r} was sampled in turn {turn} after reading ...{then!r}, but reads "
        f"...{now!r} when the others say what they said in other rollouts. Texts can "
        "be combined only where nobody reads what others say in the same joint turn. "
        f"{_ALIGNED}"
    )


def random_episodes(env: Any, *, tasks: int = 4, rollouts: int = 2) -> list[Trajectory]:
    """Play first joint turns with random valid texts, to try out what combines them.

    Args:
        env: A MultiAgentAdapter whose game has ``random_action``.
        tasks: How many instances.
        rollouts: Of each.

    Returns:
        What each agent did, until all have acted or the game is over (``max_turns`` of
        their tasks says when); nothing if the game has no random policy.
    """
    if not hasattr(env.unwrapped, "random_action"):
        return []
    found: list[Trajectory] = []
    for i in range(tasks * rollouts):
        task = Task(i // rollouts, i % rollouts, seed=i // rollouts)
        try:
            found += _random_episode(env, task, i)
        except NotImplementedError:
            return []
    return found


def _random_episode(env: Any, task: Task, episode: int) -> list[Trajectory]:
    rng = np.random.default_rng([episode, 1])
    told = env.reset(seed=task.seed, options=dict(task.options))
    agent_states: dict[str, Trajectory] = {}
    steps = 0
    while not told.is_over and len(agent_states) < len(env.possible_agents):
        actions = {}
        for agent, text in told.observations.items():
            if agent not in agent_states:
                number = env.possible_agents.index(agent)
                lists: list[list[Any]] = [[] for _ in range(6)]
                agent_states[agent] = Trajectory(
                    task, episode, number, agent, "", *lists
                )
            agent_state, actions[agent] = (
                agent_states[agent],
                env.unwrapped.random_action(agent, rng),
            )
            agent_state.observations.append(text)
            agent_state.completions.append(actions[agent])
            agent_state.rewards.append(0.0)
            agent_state.steps.append(steps)
            agent_state.num_tokens.append(1)
            agent_state.invalid.append(False)
        told = env.step(actions)
        steps += 1
        for agent, reward in told.rewards:
            if agent in agent_states:
                agent_states[agent].rewards[-1] += reward
    for agent_state in agent_states.values():
        agent_state.task = dataclasses.replace(task, max_turns=steps)
    return list(agent_states.values())
