"""Environments in programs of their own, which ask for actions by RLlib's RLlink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.env_options import is_finite
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError

if TYPE_CHECKING:
    from rllib_llm.envs.adapters.rllink import Connection, Listener

_ENDED = "The episode has ended."


@register_text_env("external-v0")
class ExternalEnv(TextEnv):
    """An environment that runs in another program and is the client of RLlink.

    The program asks for actions: ``START_EPISODE``, then ``GET_ACTION`` with an
    observation for each turn, ``LOG_RETURNS`` with rewards, ``END_EPISODE``. Each
    environment has one connection. In RLlib's words it is an external environment
    whose policy stays with the EnvRunner. ``success`` is what ``END_EPISODE`` holds;
    else it is undefined.
    """

    max_turns = 100
    has_success = False

    def __init__(self, env_config: dict[str, Any] | None = None):
        super().__init__(env_config)
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._opened: tuple[Any, ...] = ()
        self._seed: int | None = None
        self._turn_fields: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the program's next episode, with this seed."""
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def start(
        self,
        rng: np.random.Generator,
        command: str | list[str] | None = None,
        listen: str | None = None,
        episode_options: dict[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Start the program's next episode and return its first observation.

        Args:
            rng: Gives the seed of an episode that has none.
            command: Command line of the program, which is started once per environment
                and finds the address in the variable ``RLLINK_ADDRESS``.
            listen: ``"host:port"`` at which programs connect that something else
                starts; exactly one of ``command`` and ``listen`` must be set.
            episode_options: Sent in the answer to ``START_EPISODE``.
            timeout_s: Time limit of every wait for the program, in seconds, > 0.

        Raises:
            ConfigError: If an option is wrong, or the address is in use.
            ExternalUnavailable: If the program ends, or exceeds the time limit.
        """
        if (command is None) == (listen is None):
            raise ConfigError(
                f"external-v0 has command={command!r} and listen={listen!r}; exactly "
                "one must be set. Set command to start the program, or listen='host:"
                "port' to wait for a program that something else starts."
            )
        if not is_finite(timeout_s) or timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s!r} must be > 0 seconds.")
        seed = self._seed if self._seed is not None else int(rng.integers(2**31))
        connection = self._connect(command, listen, timeout_s)
        connection.start_episode(seed, self.split, dict(episode_options or {}))
        end, observation = self._next_turn(connection)[1:]
        if end is not None:
            raise EnvContractError(
                "The program of external-v0 ended an episode before its first "
                "GET_ACTION. Let it send an observation first."
            )
        return observation

    def reply(self, action: str) -> TurnResult:
        """Send the action; return what comes until the next one is asked for."""
        if self._connection is None:
            raise EnvContractError("Call reset() before step().")
        connection = self._connection
        connection.answer_action(action)
        reward, end, observation = self._next_turn(connection)
        if end is None:
            return TurnResult(observation, reward)
        is_cut = _flag(end, "truncated", default=False)
        return TurnResult(
            observation or _ENDED,
            reward,
            terminated=not is_cut,
            truncated=bool(is_cut),
            success=_flag(end, "success", default=None),
            metrics=_metrics(end),
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return ``expert_action`` of the last GET_ACTION."""
        return self._scripted("expert_action")

    def random_action(self, rng: np.random.Generator) -> str:
        """Return ``random_action`` of the last GET_ACTION."""
        return self._scripted("random_action")

    def admissible_actions(self) -> list[str] | None:
        """Return ``admissible_actions`` of the last GET_ACTION, None if it has none."""
        actions = self._turn_fields.get("admissible_actions")
        return None if actions is None else [str(action) for action in actions]

    def snapshot(self) -> bytes:
        """Raise an error: the state of a program cannot be copied."""
        raise EnvContractError(
            "The state of external-v0's program cannot be copied. Use a method that "
            "does not branch from the middle of an episode."
        )

    def close(self) -> None:
        """End the connection, and the program if ``command`` started it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def interrupt(self) -> None:
        """Make a call that waits for the program return with an error."""
        if self._connection is not None:
            self._connection.interrupt()

    def _connect(
        self, command: str | list[str] | None, listen: str | None, timeout_s: float
    ) -> Connection:
        from rllib_llm.envs.adapters.rllink import Listener  # imports RLlib

        wanted = (command, listen, timeout_s)
        if self._connection is not None and self._connection.is_open:
            if wanted == self._opened:
                return self._connection
            self.close()
        if self._listener is None or wanted != self._opened:
            self.close()
            self._listener, self._opened = Listener(command, listen), wanted
        self._connection = self._listener.connect(timeout_s)
        return self._connection

    def _next_turn(
        self, connection: Connection
    ) -> tuple[float, dict[str, Any] | None, str]:
        """Return the reward, END_EPISODE's fields or None, and the observation."""
        reward, message = connection.until_action_or_end()
        is_over = message.pop("is_over")
        self._turn_fields = {} if is_over else message
        observation = message.get("observation")
        if not isinstance(observation, str) and not (is_over and observation is None):
            raise EnvContractError(
                f"The program of external-v0 sent the observation {observation!r}; it "
                "must be a text."
            )
        return reward, (message if is_over else None), observation or ""

    def _scripted(self, field: str) -> str:
        action = self._turn_fields.get(field)
        if action is None:
            raise NotImplementedError(
                f"The program of external-v0 sent GET_ACTION without {field!r}. Send "
                "it with each observation if demonstrations or checks need it."
            )
        return str(action)


def _flag(end: dict[str, Any], name: str, default: bool | None) -> bool | None:
    value = end.get(name, default)
    if value is not None and not isinstance(value, bool):
        raise EnvContractError(
            f"END_EPISODE of external-v0's program has {name}={value!r}; it must be "
            "true or false."
        )
    return value


def _metrics(end: dict[str, Any]) -> dict[str, float]:
    metrics = end.get("metrics") or {}
    if not isinstance(metrics, dict) or not all(map(is_finite, metrics.values())):
        raise EnvContractError(
            f"END_EPISODE of external-v0's program has metrics={metrics!r}; they must "
            "be finite numbers by name."
        )
    return {str(name): float(value) for name, value in metrics.items()}
