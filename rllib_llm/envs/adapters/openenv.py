"""Environments on OpenEnv servers, played in text."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.adapters import openenv_texts
from rllib_llm.envs.adapters.openenv_client import (
    ActionRejected,
    OpenEnvSession,
    import_websockets,
    no_snapshot,
    require_timeout,
)
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError, summarize
from rllib_llm.imports import import_object

_ENDED = "The episode has ended."


@register_text_env("openenv-v0")
class OpenEnv(TextEnv):
    """Any environment on an OpenEnv server, in a session of its own.

    Rewards and the end are the server's; a turn without a reward has 0. ``success``
    comes from a field ``success`` of the last observation or its metadata, or from
    ``success_return``; else it is undefined.

    Raises:
        MissingExtraError: If the package ``websockets`` is not installed.
    """

    max_turns = 100
    has_success = False

    def __init__(self, env_config: dict[str, Any] | None = None):
        import_websockets()
        super().__init__(env_config)
        self._session: OpenEnvSession | None = None
        self._opened: tuple[Any, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode on the server, with this seed."""
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def start(
        self,
        rng: np.random.Generator,
        url: str | None = None,
        reset_options: dict[str, Any] | None = None,
        send_split: bool = False,
        observation: str | None = None,
        action: str | None = None,
        success_return: float | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Start an episode on the server.

        Args:
            rng: Unused: the server has the seed.
            url: Address of the server, e.g. ``"http://localhost:8000"``.
            reset_options: Further options of the environment's ``reset``.
            send_split: Whether ``reset`` also receives ``split``: train or test.
            observation: ``"module:function"``, called as ``function(observation)``,
                which returns its text; None: the only field with text, else JSON.
            action: ``"module:function"``, called as ``function(text, schema)``, which
                returns an action, or None for an invalid text; None: by the schema.
            success_return: Return, from which on an episode counts as solved.
            timeout_s: Time limit of every answer in seconds, > 0.
        """
        if url is None:
            raise ConfigError(
                "openenv-v0 needs the address of a server. Set env_config={'url': "
                "'http://localhost:8000'}."
            )
        require_timeout(timeout_s)
        self._success_return, self._return = success_return, 0.0
        session = self._open(url, timeout_s, observation, action)
        given = dict(reset_options or {})
        if self._seed is not None:
            given["seed"] = self._seed
        if send_split:
            given["split"] = self.split
        result = session.reset(**given)
        if result.get("done"):
            raise EnvContractError(
                f"The OpenEnv server {url!r} began an episode that has already ended "
                f"(reset options: {given}). Correct reset_options."
            )
        text = self._text(result["observation"])
        return f"{text}\n{self._hint}" if self._hint else text

    def parse(self, completion: str) -> dict[str, Any] | None:
        """Return the action in the text, by ``action`` or by the server's schema."""
        try:
            return self._to_action(completion, self._schema)
        except Exception as error:  # any type: a function of the user's
            raise EnvContractError(
                f"env_config.action={self._opened[-1]!r} raised {summarize(error)}. "
                "Return None for a text that holds no action."
            ) from error

    def reply(self, action: dict[str, Any]) -> TurnResult:
        """Act on the server; an action that it rejects is answered with the hint."""
        if self._session is None:
            raise EnvContractError("Call reset() before step().")
        try:
            result = self._session.step(action)
        except ActionRejected:
            return self._invalid()
        reward, seen = result.get("reward"), result["observation"]
        reward = 0.0 if reward is None else float(reward)
        self._return += reward
        done = bool(result.get("done"))
        is_cut = done and _flag(seen, "truncated") is True
        text = self._text(seen) if not done else self._last_text(seen)
        return TurnResult(
            text,
            reward,
            terminated=done and not is_cut,
            truncated=is_cut,
            success=self._solved(seen) if done else None,
        )

    def snapshot(self) -> bytes:
        """Raise an error: the state of a server cannot be copied."""
        raise no_snapshot()

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(
        self, url: str, timeout_s: float, observation: str | None, action: str | None
    ) -> OpenEnvSession:
        wanted = (url, timeout_s, observation, action)
        if self._session is not None and wanted == self._opened:
            return self._session
        self.close()
        session = OpenEnvSession(url, timeout_s)
        self._to_text = openenv_texts.observation_text
        if observation is not None:
            self._to_text = import_object(observation, "env_config.observation")
        self._to_action, self._hint = openenv_texts.text_action, ""
        if action is not None:
            self._to_action = import_object(action, "env_config.action")
        self._schema = session.schema()
        if action is None:
            self._hint = openenv_texts.action_hint(self._schema)
            self.format_hint = self._hint or "Please answer with text."
        self._session, self._opened = session, wanted
        return session

    def _text(self, seen: dict[str, Any]) -> str:
        text = self._to_text(seen)
        if not isinstance(text, str) or not text.strip():
            raise EnvContractError(
                f"The observation {str(seen)[:200]} became {text!r}, which is not a "
                "text. Set env_config.observation to 'module:function', a function "
                "from an observation to a non-empty string."
            )
        return text

    def _last_text(self, seen: dict[str, Any]) -> str:
        text = self._to_text(seen)
        return text if isinstance(text, str) and text.strip(" {}") else _ENDED

    def _solved(self, seen: dict[str, Any]) -> bool | None:
        if self._success_return is not None:
            return self._return >= self._success_return
        return _flag(seen, "success")


def _flag(seen: dict[str, Any], name: str) -> bool | None:
    """Return a field of an observation or of its metadata, if it is a boolean."""
    metadata = seen.get("metadata")
    for fields in (seen, metadata if isinstance(metadata, dict) else {}):
        if isinstance(fields.get(name), bool):
            return fields[name]
    return None
