"""Environments of this package as OpenEnv servers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.envs.env_kinds import is_multi_agent
from rllib_llm.envs.make import EnvSpec, make_env
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError, MissingExtraError
from rllib_llm.pictures.contract import IMAGES, PRECEDING
from rllib_llm.tools.formats import check_format, text_format


def openenv_app(
    env: EnvSpec, env_config: dict[str, Any] | None = None, *, max_sessions: int = 64
) -> Any:
    """Return a FastAPI application that offers an environment to OpenEnv's clients.

    With one agent an action has the field ``text``; an observation has ``text``,
    ``success`` and ``truncated``. A game of several agents has the fields of
    :class:`GameSession`, and ``openenv_game-v0`` is its client. ``reset`` takes
    ``seed``, ``split`` and the environment's options.

    Args:
        env, env_config: The environment, as for :func:`make_env`.
        max_sessions: Maximum number of sessions; each has an environment of its own.

    Raises:
        ConfigError: If the environment is not a text environment, or some of its agents
            observe numbers.
        MissingExtraError: If the package ``openenv`` is not installed.
    """
    server = _import_openenv()
    trial = make_env(env, env_config)
    if is_multi_agent(trial):
        names = GameSession(trial).possible_agents
        action, observation, served = _game_classes(server, names)
    elif isinstance(trial.unwrapped, TextEnv):
        action, observation, served = _classes(server)
    else:
        raise ConfigError(
            f"{env!r} is {type(trial.unwrapped).__name__}, which cannot be served. "
            "Serve a text environment, or a game of several agents."
        )
    trial.close()
    return server.create_fastapi_app(
        lambda: served(make_env(env, env_config)),
        action,
        observation,
        max_concurrent_envs=max_sessions,
    )


class TextSession:
    """An environment with one agent, whose texts hold all that a model would read.

    The first text begins with the system prompt of the environment and with a
    description of its tools, if it has them.

    Args:
        env: The environment.
    """

    def __init__(self, env: Any):
        self._env = env

    def reset(self, seed: int | None, options: dict[str, Any]) -> str:
        """Start an episode and return its first text.

        Raises:
            EnvContractError: If the episode cannot be shown in one text.
        """
        text, info = self._env.reset(seed=seed, options=options)
        _require_text(info)
        if info.get(PRECEDING):
            raise EnvContractError(
                "A served episode began with earlier messages, and its observations "
                "are single texts. Serve an environment or data without them."
            )
        system = self._env.unwrapped.system_prompt or info.get("system_prompt")
        tools = info.get("tools")
        if tools:
            kind = check_format(info.get("tool_format", "auto"))
            text = f"{text_format(tools, kind).describe(tools)}\n\n{text}"
        return f"{system}\n\n{text}" if system else text

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play a turn, as the environment does.

        Raises:
            EnvContractError: If it shows a picture.
        """
        result = self._env.step(action)
        _require_text(result[-1])
        return result

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _require_text(info: Any) -> None:
    if info.get(IMAGES):
        raise EnvContractError(
            "A served environment showed a picture, and its observations are texts. "
            "Serve an environment without pictures."
        )


class GameSession:
    """A game of several agents, with results that JSON can hold.

    A result holds ``agents`` (those in the game), ``texts`` (what the agents read that
    must act next), ``final_texts`` (what truncated agents would have read),
    ``rewards``, ``terminated``, ``truncated``, ``invalid`` (agents with an invalid
    action), ``admissible_actions`` by agent, ``success``, ``metrics`` and
    ``stop_reason``.

    Args:
        env: The game.

    Raises:
        ConfigError: If an agent observes numbers.
    """

    def __init__(self, env: Any):
        self._game = MultiAgentAdapter(env)
        self.possible_agents = self._game.possible_agents
        numeric = list(filter(self._game.number_spaces, self.possible_agents))
        if numeric:
            raise ConfigError(
                f"{numeric} of {type(env.unwrapped).__name__} observe numbers, and a "
                "served game is played in texts. Serve a game of text agents."
            )
        self.is_over = False

    def reset(self, seed: int | None, options: dict[str, Any]) -> dict[str, Any]:
        """Start an episode; the result also holds ``system_prompts`` by agent."""
        result = self._result(self._game.reset(seed=seed, options=options))
        prompts = {a: self._game.system_prompt_for(a) for a in self.possible_agents}
        result["system_prompts"] = {a: p for a, p in prompts.items() if p is not None}
        return result

    def step(self, texts: dict[str, str]) -> dict[str, Any]:
        """Play the texts of exactly the agents that must act."""
        return self._result(self._game.step(texts))

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    def _result(self, step: MultiAgentStep) -> dict[str, Any]:
        for info in step.infos.values():
            _require_text(info)
        if step.error is not None:
            raise EnvContractError(f"The game has failed: {step.error}.")
        self.is_over = step.is_over
        rewards: dict[str, float] = {}
        for agent, reward in step.rewards:
            rewards[agent] = rewards.get(agent, 0.0) + reward
        infos = step.infos
        return {
            "agents": self._game.live_agents,
            "texts": step.observations,
            "final_texts": step.final_observations,
            "rewards": rewards,
            "terminated": list(step.terminated),
            "truncated": list(step.truncated),
            "invalid": [a for a in infos if infos[a].get("invalid_action")],
            ADMISSIBLE: {a: i[ADMISSIBLE] for a, i in infos.items() if ADMISSIBLE in i},
            "success": step.success,
            "metrics": step.metrics,
            "stop_reason": step.stop_reason,
        }


def _served(server: Any, session: type[TextSession | GameSession]) -> type:
    """Return OpenEnv's environment of a session, without its observations."""

    class Session(server.Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self, env: Any):
            super().__init__()
            self._session, self._state = session(env), server.State()

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            split: str = "train",
            **options: Any,
        ) -> Any:
            """Start an episode."""
            result = self._session.reset(seed, {**options, "split": split})
            self._state = server.State(episode_id=episode_id or str(uuid4()))
            return self._started(result)

        @property
        def state(self) -> Any:
            """Number of turns of the episode."""
            return self._state

        def close(self) -> None:
            """End the session."""
            self._session.close()

    return Session


def _classes(server: Any) -> tuple[type, type, type]:
    class TextAction(server.Action):
        """A turn of the model."""

        text: str

    class TextObservation(server.Observation):
        """The environment's message."""

        text: str
        success: bool | None = None
        truncated: bool = False

    class Served(_served(server, TextSession)):  # type: ignore[misc]
        """A session."""

        def _started(self, text: str) -> Any:
            return TextObservation(text=text)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            """Play a turn."""
            result = self._session.step(action.text)
            text, reward, terminated, truncated, info = result
            self._state.step_count += 1
            return TextObservation(
                text=text,
                reward=reward,
                done=terminated or truncated,
                success=info.get("success"),
                truncated=truncated,
            )

    return TextAction, TextObservation, Served


def _game_classes(server: Any, names: list[str]) -> tuple[type, type, type]:
    class GameAction(server.Action):
        """The texts of the agents that must act."""

        texts: dict[str, str]

    class GameObservation(server.Observation):
        """A result of GameSession; the schema names the agents."""

        possible_agents: list[str] = names
        agents: list[str]
        texts: dict[str, str]
        final_texts: dict[str, str]
        rewards: dict[str, float]
        terminated: list[str]
        truncated: list[str]
        invalid: list[str]
        admissible_actions: dict[str, list[str]]
        success: bool | None
        metrics: dict[str, float]
        stop_reason: str | None
        system_prompts: dict[str, str] = {}

    class ServedGame(_served(server, GameSession)):  # type: ignore[misc]
        """A session."""

        def _started(self, result: dict[str, Any]) -> Any:
            return GameObservation(**result)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            """Play the turns of the agents that act together."""
            result = self._session.step(action.texts)
            self._state.step_count += 1
            return GameObservation(
                **result,
                reward=sum(result["rewards"].values()),
                done=self._session.is_over,
            )

    return GameAction, GameObservation, ServedGame


def _import_openenv() -> Any:
    try:
        from openenv.core import env_server
    except ModuleNotFoundError as error:
        raise MissingExtraError.for_extra("openenv", "openenv-server") from error
    return env_server
