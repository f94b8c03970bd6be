"""Environments of this package as OpenEnv servers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from rllib_llm.envs.make import EnvSpec, make_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, MissingExtraError


def openenv_app(
    env: EnvSpec, env_config: dict[str, Any] | None = None, *, max_sessions: int = 64
) -> Any:
    """Return a FastAPI application that offers an environment to OpenEnv's clients.

    An action has the field ``text``; an observation has ``text``, ``success`` and
    ``truncated``. ``reset`` takes ``seed`` and ``split``.

    Args:
        env, env_config: The environment with one agent, as for :func:`make_env`.
        max_sessions: Maximum number of sessions; each has an environment of its own.

    Raises:
        ConfigError: If the environment is not a text environment with one agent.
        MissingExtraError: If the package ``openenv`` is not installed.
    """
    server = _import_openenv()
    trial = make_env(env, env_config)
    if not isinstance(trial.unwrapped, TextEnv):
        raise ConfigError(
            f"{env!r} is {type(trial.unwrapped).__name__}; only environments with one "
            "agent can be served. Use solo-v0 to play all agents of a game with one."
        )
    trial.close()
    action, observation, served = _classes(server)
    return server.create_fastapi_app(
        lambda: served(make_env(env, env_config)),
        action,
        observation,
        max_concurrent_envs=max_sessions,
    )


def _classes(server: Any) -> tuple[type, type, type]:
    class TextAction(server.Action):
        """A turn of the model."""

        text: str

    class TextObservation(server.Observation):
        """The environment's message."""

        text: str
        success: bool | None = None
        truncated: bool = False

    class Served(server.Environment):
        """A session."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self, env: Any):
            super().__init__()
            self._env, self._state = env, server.State()

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            split: str = "train",
            **_: Any,
        ) -> Any:
            """Start an episode."""
            text, _info = self._env.reset(seed=seed, options={"split": split})
            self._state = server.State(episode_id=episode_id or str(uuid4()))
            return TextObservation(text=text)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            """Play a turn."""
            text, reward, terminated, truncated, info = self._env.step(action.text)
            self._state.step_count += 1
            return TextObservation(
                text=text,
                reward=reward,
                done=terminated or truncated,
                success=info.get("success"),
                truncated=truncated,
            )

        @property
        def state(self) -> Any:
            """Number of turns of the episode."""
            return self._state

        def close(self) -> None:
            """End the session."""
            self._env.close()

    return TextAction, TextObservation, Served


def _import_openenv() -> Any:
    try:
        from openenv.core import env_server
    except ModuleNotFoundError as error:
        raise MissingExtraError.for_extra("openenv", "openenv-server") from error
    return env_server
