"""Connections with external environments: RLlib's RLlink messages over TCP.

A message is eight decimal digits, the length of the rest, and a msgpack map with the
key ``type``, as :mod:`ray.rllib.env.external.rllink` writes and reads them. That
module's functions need msgpack_numpy, which unpickles arrays of objects: a program
could run code here. So messages are read with msgpack alone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable
from typing import Any

import msgpack
from ray.rllib.env.external.rllink import RLlink

from rllib_llm.errors import ConfigError, EnvContractError, RLlibLLMError, summarize

_ANY_PORT = ("127.0.0.1", 0)  # any free port
_BACKLOG = 128
_LENGTH_DIGITS, _MOST_BYTES = 8, 4 * 2**20  # of a message; texts are shorter
_OF_CLIENT = frozenset(
    {
        RLlink.START_EPISODE,
        RLlink.GET_ACTION,
        RLlink.LOG_RETURNS,
        RLlink.END_EPISODE,
    }
)


class ExternalUnavailable(RLlibLLMError):
    """An external environment did not connect, ended, or exceeded the time limit.

    The episode is dropped and repeated; this is never a reward of zero.
    """


class Connection:
    """The connection with one external environment.

    Args:
        sock: A connected socket.
        timeout_s: Time limit of every wait in seconds.
    """

    def __init__(self, sock: socket.socket, timeout_s: float):
        sock.settimeout(timeout_s)
        # Messages are small and wait for each other.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._timeout_s = sock, timeout_s
        self._num_episodes = 0
        self._asks = False  # whether a GET_ACTION has no answer yet
        self.is_open = True

    def start_episode(self, seed: int, split: str, options: dict[str, Any]) -> None:
        """Wait for START_EPISODE and answer it.

        An episode that was given up is ended first: its GET_ACTION is answered with
        END_EPISODE, and what the program sends of it is discarded.
        """
        if self._asks:
            self._send(RLlink.END_EPISODE, reason="the EnvRunner gave the episode up")
            self._asks = False
        while (kind := self._receive()[0]) != RLlink.START_EPISODE:
            if kind == RLlink.GET_ACTION:
                self._send(RLlink.END_EPISODE, reason="START_EPISODE is missing")
        self._num_episodes += 1
        episode = {"seed": seed, "split": split, "options": options}
        self._send(RLlink.START_EPISODE, episode_id=self._num_episodes, **episode)

    def answer_action(self, action: str) -> None:
        """Answer the program's GET_ACTION."""
        self._send(RLlink.GET_ACTION, action=action)
        self._asks = False

    def until_action_or_end(self) -> tuple[float, dict[str, Any]]:
        """Read until GET_ACTION or END_EPISODE.

        Returns:
            The sum of the rewards of LOG_RETURNS, and the fields of the last message
            with ``is_over``: whether it is END_EPISODE.
        """
        reward = 0.0
        while True:
            kind, fields = self._receive()
            if kind == RLlink.LOG_RETURNS:
                reward += self._reward(fields)
            elif kind == RLlink.START_EPISODE:
                raise self._wrong("START_EPISODE in the middle of an episode")
            else:
                self._asks = kind == RLlink.GET_ACTION
                return reward, {**fields, "is_over": kind == RLlink.END_EPISODE}

    def interrupt(self) -> None:
        """Make a waiting call of another thread fail."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        self._socket.close()

    def _receive(self) -> tuple[RLlink, dict[str, Any]]:
        """Return the next message that is not a PING."""
        while True:
            fields = self._read()
            try:
                kind = RLlink(fields.pop("type", None))
            except ValueError:
                raise self._wrong("a message without a type of RLlink") from None
            if kind == RLlink.PING:
                self._send(RLlink.PONG)
            elif kind in _OF_CLIENT:
                return kind, fields
            else:
                raise self._wrong(
                    f"{kind.name}, a message of clients that hold the model. The "
                    "policy stays with the EnvRunner here: ask for actions with "
                    "GET_ACTION"
                )

    def _read(self) -> dict[str, Any]:
        """Return the fields of the next message."""
        header = self._read_bytes(_LENGTH_DIGITS)
        if not header.isdigit() or int(header) > _MOST_BYTES:
            raise self._wrong(
                f"{header!r} in place of the length of a message, at most "
                f"{_MOST_BYTES} bytes in {_LENGTH_DIGITS} digits"
            )
        body = self._read_bytes(int(header))
        try:
            fields = msgpack.unpackb(body, raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise self._wrong(f"a message that is not msgpack: {error}") from error
        if not isinstance(fields, dict):
            raise self._wrong(f"{str(fields)[:200]!r} in place of a map")
        return fields

    def _read_bytes(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(count - len(data))
            except OSError as error:
                raise self._unavailable(error) from error
            if not part:
                raise self._unavailable(ConnectionError("it has disconnected"))
            data += part
        return bytes(data)

    def _send(self, kind: RLlink, **fields: Any) -> None:
        body = msgpack.packb({"type": kind.name, **fields})
        try:
            self._socket.sendall(str(len(body)).zfill(_LENGTH_DIGITS).encode() + body)
        except OSError as error:
            raise self._unavailable(error) from error

    def _reward(self, fields: dict[str, Any]) -> float:
        reward = fields.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise self._wrong(f"LOG_RETURNS with reward={reward!r}, not a number")
        return float(reward)

    def _unavailable(self, error: Exception) -> ExternalUnavailable:
        self.close()  # a late message would be taken for one of the next episode
        return ExternalUnavailable(
            f"The program of external-v0 does not answer: {summarize(error)}. Check "
            f"that it runs, and that timeout_s={self._timeout_s:g} is enough."
        )

    def _wrong(self, what: str) -> EnvContractError:
        self.close()
        return EnvContractError(f"The program of external-v0 sent {what}.")


class _SharedSockets:
    """Listening sockets of this process by address, with the number of users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[str, tuple[socket.socket, int]] = {}

    def open(self, listen: str) -> socket.socket:
        """Return the socket of ``"host:port"``."""
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError(
                f"listen={listen!r} must be 'host:port', e.g. '127.0.0.1:5555'."
            )
        with self._lock:
            if listen in self._sockets:
                sock, users = self._sockets[listen]
            else:
                sock, users = _listening((host, int(port))), 0
            self._sockets[listen] = sock, users + 1
            return sock

    def close(self, listen: str) -> None:
        """Close the socket if this was its last user."""
        with self._lock:
            sock, users = self._sockets.pop(listen)
            if users > 1:
                self._sockets[listen] = sock, users - 1
            else:
                sock.close()


_SHARED = _SharedSockets()


class Listener:
    """Waits for programs at an address, and may start one.

    Args:
        command: Command line of the program, which is started for each connection and
            finds a free address in RLLINK_ADDRESS. None: something else starts it.
        listen: ``"host:port"`` if there is no command; environments of one process
            share it.

    Raises:
        ConfigError: If the address or the command is wrong.
    """

    def __init__(self, command: str | list[str] | None, listen: str | None):
        self._listen, self._command = listen, None
        self._process: subprocess.Popen[bytes] | None = None
        self._end_process: Callable[[], object] = _nothing
        if listen is not None:
            self._socket = _SHARED.open(listen)
            return
        parts = shlex.split(command) if isinstance(command, str) else command
        if not parts or not all(isinstance(part, str) for part in parts):
            raise ConfigError(
                f"command={command!r} must be a command line, or a list of the command "
                "and its arguments."
            )
        self._command, self._socket = list(parts), _listening(_ANY_PORT)

    def connect(self, timeout_s: float) -> Connection:
        """Start the program if there is a command, and return its connection.

        Raises:
            ConfigError: If the command cannot be started.
            ExternalUnavailable: If no program connects in time.
        """
        self._start()
        host, port = self._socket.getsockname()[:2]
        self._socket.settimeout(timeout_s)
        try:
            sock, _ = self._socket.accept()
        except OSError as error:
            status = None if self._process is None else self._process.poll()
            ended = "" if status is None else f" It has ended with status {status}."
            raise ExternalUnavailable(
                f"No program connected with external-v0 at {host}:{port} in "
                f"{timeout_s:g} s.{ended} Check the program, or raise timeout_s."
            ) from error
        return Connection(sock, timeout_s)

    def close(self) -> None:
        """End the program that was started, and stop listening."""
        self._stop()
        if self._listen is None:
            self._socket.close()
        else:
            _SHARED.close(self._listen)

    def _start(self) -> None:
        self._stop()
        if self._command is None:
            return
        host, port = self._socket.getsockname()[:2]
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "RLLINK_ADDRESS": f"{host}:{port}"},
                start_new_session=True,  # so that close() reaches its children
            )
        except OSError as error:
            raise ConfigError(
                f"command={self._command!r} cannot be started: {error}. Give a command "
                "line."
            ) from error
        # Also when an environment is collected that nothing has closed.
        self._end_process = weakref.finalize(self, _end, self._process)

    def _stop(self) -> None:
        self._process = None
        self._end_process()


def _nothing() -> None:
    """Do nothing: there is no process."""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _listening(address: tuple[str, int]) -> socket.socket:
    try:
        sock = socket.create_server(address, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"listen='{address[0]}:{address[1]}' cannot be used: {error}. One process "
            "can listen at an address: choose a free port and num_env_runners of at "
            "most 1, or set command in place of listen."
        ) from error
    return sock
