"""Games of several agents on OpenEnv servers, played in text."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
from pettingzoo import ParallelEnv

from rllib_llm.data.types import StopReason
from rllib_llm.envs.adapters.openenv_client import (
    ActionRejected,
    OpenEnvSession,
    import_websockets,
    no_snapshot,
    require_timeout,
)
from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.envs.env_options import EnvOptions
from rllib_llm.envs.multi_agent_env import API_TEST_OPTIONS
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, EnvContractError

_Field = TypeVar("_Field", dict, list)


@register_text_env("openenv_game-v0")
class OpenEnvGame(EnvOptions, ParallelEnv):
    """A game of several agents on an OpenEnv server, in a session of its own.

    An action holds the texts of the agents that must act. An observation holds the
    texts that the next agents read, and rewards, ends and results by agent; all of them
    are the server's. ``openenv_app`` serves such games.

    Raises:
        ConfigError: If an option does not exist or has a value out of range.
        MissingExtraError: If the package ``websockets`` is not installed.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": [],
        "name": "openenv_game-v0",
    }
    render_mode: str | None = None
    max_turns = 100
    has_success = False
    _BASE_OPTIONS: ClassVar[tuple[str, ...]] = ("max_turns",)

    def __init__(self, env_config: dict[str, Any] | None = None):
        import_websockets()
        self._read_config(env_config)
        self.agents: list[str] = []
        self._space = UnicodeText()
        self._asked: list[str] = []
        self._system_prompts: dict[str, str] = {}

    @functools.cached_property
    def possible_agents(self) -> list[str]:
        """Names of the agents; the server is asked for them if ``agents`` is None.

        Raises:
            ConfigError: If an option is wrong.
            EnvContractError: If the server's environment is not a game.
            OpenEnvUnavailable: If the server does not answer.
        """
        names = self.options()["agents"]
        return list(self._served_agents() if names is None else names)

    @functools.cached_property
    def _session(self) -> OpenEnvSession:
        options = self.options()
        if options["url"] is None:
            raise ConfigError(
                "openenv_game-v0 needs the address of a server of a game. Set "
                "env_config={'url': 'http://localhost:8000'}."
            )
        require_timeout(options["timeout_s"])
        return OpenEnvSession(options["url"], options["timeout_s"])

    def start(
        self,
        rng: Any,
        url: str | None = None,
        agents: list[str] | None = None,
        reset_options: dict[str, Any] | None = None,
        send_split: bool = False,
        timeout_s: float = 60.0,
    ) -> dict[str, Any]:
        """Start an episode on the server; return the server's result.

        Args:
            rng: Unused: the server has the seed.
            url: Address of the server, e.g. ``"http://localhost:8000"``.
            agents: Names of the agents; None: the server is asked for them.
            reset_options: Further options of the game's ``reset``.
            send_split: Whether ``reset`` also receives ``split``: train or test.
            timeout_s: Time limit of every answer in seconds, > 0.
        """
        given = dict(reset_options or {})
        if self._seed is not None:
            given["seed"] = self._seed
        if send_split:
            given["split"] = self.split
        return self._session.reset(**given)

    # PettingZoo -----------------------------------------------------------------------

    def observation_space(self, agent: str) -> gym.Space:
        """Return the space of texts."""
        return self._space

    def action_space(self, agent: str) -> gym.Space:
        """Return the space of texts."""
        return self._space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Start an episode with this seed; return observations and infos.

        Raises:
            EnvContractError: If the server's environment is not a game of these agents.
            OpenEnvUnavailable: If the server fails or does not answer.
        """
        if options == API_TEST_OPTIONS:
            options = None
        start_options = self._read_reset_options(options)
        fixed = {"url", "agents", "timeout_s"} & set(options or {})
        if fixed:
            raise ConfigError(
                f"{sorted(fixed)} cannot change between the episodes of "
                "openenv_game-v0. Set them in env_config."
            )
        self._seed, self.turn = seed, 0
        result = self.start(None, **start_options)
        seen = result["observation"]
        served = self._read(seen, "possible_agents", list)
        if served != self.possible_agents:
            raise EnvContractError(
                f"The game on {self._session.url!r} has the agents {served}, and "
                f"env_config has agents={self.possible_agents}. Set these of the game, "
                "or leave agents out."
            )
        self._system_prompts = self._read(seen, "system_prompts", dict)
        self.agents = self._read(seen, "agents", list)
        return self._observations(seen), self._infos(seen, self.agents)

    def step(self, actions: dict[str, str]) -> tuple[dict[str, Any], ...]:
        """Send the texts of the agents that act; return what follows, by agent.

        Raises:
            OpenEnvUnavailable: If the server fails or does not answer.
        """
        self.turn += 1
        texts = {agent: actions[agent] for agent in self._asked}
        try:
            seen = self._session.step({"texts": texts})["observation"]
        except ActionRejected as error:
            raise self._not_a_game(f"it rejects texts by agent: {error}") from error
        live = self._read(seen, "agents", list)
        names = list(dict.fromkeys([*self.agents, *live]))
        observations, infos = self._observations(seen), self._infos(seen, names)
        ended = set(self._read(seen, "terminated", list))
        cut = set(self._read(seen, "truncated", list))
        if live and self.turn >= self.max_turns:
            cut |= set(live)
            live = []
            for info in infos.values():
                info["stop_reason"] = StopReason.MAX_TURNS
        self.agents = live
        return (
            observations,
            {**dict.fromkeys(names, 0.0), **self._read(seen, "rewards", dict)},
            {agent: agent in ended for agent in names},
            {agent: agent in cut for agent in names},
            infos,
        )

    def system_prompt_for(self, agent: str) -> str | None:
        """Return the agent's system prompt in the running episode."""
        return self._system_prompts.get(agent)

    def snapshot(self) -> bytes:
        """Raise an error: the state of a server cannot be copied."""
        raise no_snapshot()

    def close(self) -> None:
        """End the session."""
        if "_session" in self.__dict__:
            self._session.close()

    # Fields of the server -------------------------------------------------------------

    def _served_agents(self) -> list[str]:
        """Return the names of the agents, from the schema of the observations."""
        schema = self._session.schema("observation")
        field = (schema.get("properties") or {}).get("possible_agents") or {}
        names = field.get("default")
        if not isinstance(names, list) or not names:
            raise self._not_a_game("its schema names no agents")
        return names

    def _observations(self, seen: dict[str, Any]) -> dict[str, str]:
        """Return the texts of agents that act next or were truncated, else ``""``."""
        texts = self._read(seen, "texts", dict)
        self._asked = [agent for agent in self.possible_agents if agent in texts]
        waiting = dict.fromkeys(self._read(seen, "agents", list), "")
        return {**waiting, **self._read(seen, "final_texts", dict), **texts}

    def _infos(
        self, seen: dict[str, Any], agents: list[str]
    ) -> dict[str, dict[str, Any]]:
        common = {
            "success": seen.get("success"),
            "metrics": self._read(seen, "metrics", dict),
            "stop_reason": seen.get("stop_reason"),
        }
        invalid = self._read(seen, "invalid", list)
        infos = {a: {**common, "invalid_action": a in invalid} for a in agents}
        for agent, actions in self._read(seen, ADMISSIBLE, dict).items():
            infos[agent][ADMISSIBLE] = actions
        return infos

    def _read(self, seen: dict[str, Any], name: str, kind: type[_Field]) -> _Field:
        value = seen.get(name)
        if not isinstance(value, kind):
            raise self._not_a_game(f"its observation has {name}={value!r}")
        return value

    def _not_a_game(self, problem: str) -> EnvContractError:
        return EnvContractError(
            f"The environment on {self._session.url!r} is not a game of several "
            f"agents: {problem}. Serve one with openenv_app, or play an environment of "
            "one agent with openenv-v0."
        )
