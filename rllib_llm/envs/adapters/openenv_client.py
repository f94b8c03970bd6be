"""Sessions with OpenEnv servers: JSON messages over a WebSocket."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from rllib_llm.envs.env_options import is_finite
from rllib_llm.errors import (
    ConfigError,
    EnvContractError,
    MissingExtraError,
    RLlibLLMError,
    summarize,
)

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_MOST_BYTES = 100 * 2**20
_REJECTED, _FULL = "VALIDATION_ERROR", "CAPACITY_REACHED"


class OpenEnvUnavailable(RLlibLLMError):
    """A server cannot be reached, ended, failed, or exceeded the time limit.

    The episode is dropped and repeated; this is never a reward of zero.
    """


class ActionRejected(RLlibLLMError):
    """The server does not accept an action."""


class OpenEnvSession:
    """One environment on a server; a session has an environment of its own.

    Args:
        url: Address of the server, e.g. ``"http://localhost:8000"``.
        timeout_s: Time limit of every answer, in seconds, > 0.

    Raises:
        ConfigError: If ``url`` is not an address.
        MissingExtraError: If the package ``websockets`` is not installed.
    """

    def __init__(self, url: str, timeout_s: float):
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ConfigError(
                f"url={url!r} is not an address of an OpenEnv server. Write http:// or "
                "https:// and a host, e.g. 'http://localhost:8000'."
            )
        self._connect, self._failures = import_websockets()
        self.url, self._timeout_s = url, timeout_s
        path = parts.path.rstrip("/")
        scheme = _SCHEMES[parts.scheme]
        self._ws = f"{scheme}://{parts.netloc}{path}/ws"
        self._http = f"{scheme.replace('ws', 'http')}://{parts.netloc}{path}"
        self._connection: Any = None

    def schema(self, kind: str = "action") -> dict[str, Any]:
        """Return a JSON schema of the server.

        Args:
            kind: ``"action"`` or ``"observation"``.

        Raises:
            OpenEnvUnavailable: If the server does not answer.
            EnvContractError: If its answer is not that of an OpenEnv server.
        """
        address = f"{self._http}/schema"
        try:
            with urllib.request.urlopen(address, timeout=self._timeout_s) as answer:
                schemas = json.load(answer)
        except ValueError as error:
            raise self._strange(f"{address} is not JSON") from error
        except OSError as error:
            raise self._unavailable(error) from error
        schema = schemas.get(kind) if isinstance(schemas, dict) else None
        if not isinstance(schema, dict):
            raise self._strange(f"{address} holds no schema of an {kind}")
        return schema

    def reset(self, **options: Any) -> dict[str, Any]:
        """Start an episode, in a new session if there is none; return its result."""
        if self._connection is None:
            try:
                self._connection = self._connect(
                    self._ws, open_timeout=self._timeout_s, max_size=_MOST_BYTES
                )
            except self._failures as error:
                raise self._unavailable(error) from error
        return self._ask("reset", options)

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """Act; return the result: ``observation``, ``reward`` and ``done``.

        Raises:
            ActionRejected: If the server does not accept the action.
            OpenEnvUnavailable: If it fails or does not answer.
        """
        if self._connection is None:
            raise self._unavailable(ConnectionError("the session has ended"))
        return self._ask("step", action)

    def close(self) -> None:
        """End the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        message = json.dumps({"type": kind, "data": data})
        try:
            self._connection.send(message)
            text = self._connection.recv(self._timeout_s)
        except self._failures as error:
            self.close()  # a late answer would be taken for that to the next message
            if isinstance(error, TimeoutError):
                error = TimeoutError(f"no answer to {kind} in {self._timeout_s:g} s")
            raise self._unavailable(error) from error
        try:
            answer = json.loads(text)
            is_error, content = answer["type"] == "error", dict(answer["data"])
        except (ValueError, TypeError, KeyError) as error:
            self.close()
            raise self._strange(f"its answer to {kind} is {text[:200]!r}") from error
        if is_error:
            raise self._error(kind, content)
        if not isinstance(content.get("observation"), dict):
            self.close()
            raise self._strange(f"its answer to {kind} has no observation")
        return content

    def _error(self, kind: str, content: dict[str, Any]) -> RLlibLLMError:
        code, message = content.get("code"), str(content.get("message"))[:500]
        if code == _REJECTED and kind == "step":
            return ActionRejected(message)
        self.close()
        remedy = "Correct the environment on the server"
        if code == _FULL:
            remedy = (
                "Raise max_concurrent_envs of the server, which needs a session for "
                "each environment, or lower num_envs_per_env_runner"
            )
        return OpenEnvUnavailable(
            f"The OpenEnv server {self.url!r} answered {kind} with {code}: {message}. "
            f"{remedy}."
        )

    def _unavailable(self, error: Exception) -> OpenEnvUnavailable:
        return OpenEnvUnavailable(
            f"The OpenEnv server {self.url!r} does not answer: {summarize(error)}. "
            "Check that it runs at this address, and that timeout_s is enough."
        )

    def _strange(self, what: str) -> EnvContractError:
        return EnvContractError(
            f"{self.url!r} is not an OpenEnv server that can be used here: {what}. "
            "Check the address; servers of OpenEnv 0.3 and 0.10 were tried."
        )


def no_snapshot() -> EnvContractError:
    """Return the error of saving a state that is on a server."""
    return EnvContractError(
        "The state of an OpenEnv server cannot be copied. Use a method that does not "
        "branch from the middle of an episode."
    )


def require_timeout(timeout_s: float) -> None:
    """Raise a ConfigError unless ``timeout_s`` is a time limit."""
    if not is_finite(timeout_s) or timeout_s <= 0:
        raise ConfigError(f"timeout_s={timeout_s!r} must be > 0 seconds.")


def import_websockets() -> tuple[Any, tuple[type[Exception], ...]]:
    """Import the function that opens WebSockets, and the errors of using them.

    Raises:
        MissingExtraError: If the package ``websockets`` is not installed.
    """
    try:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect
    except ModuleNotFoundError as error:
        raise MissingExtraError.for_extra("websockets", "openenv") from error
    return connect, (OSError, WebSocketException)
