"""The actor that hosts an engine for several clients.

Any engine can be hosted: the actor is given a function that builds it. A request
carries the whole history of its conversation, so that nothing is lost with the actor
that a client could not send again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm import weights
from rllib_llm.engines.base import Generation, GenerationEngine, SamplingParams

_WEIGHTS_TIMEOUT_S = 600.0  # a client that promised weights may have died


@dataclasses.dataclass(frozen=True, slots=True)
class Submit:
    """Continue a history.

    Attributes:
        session: The client's conversation.
        request: The client's number of the turn.
        history: Every token of the conversation. int32 [T]
        params: How to sample.
    """

    session: Any
    request: int
    history: np.ndarray
    params: SamplingParams


@dataclasses.dataclass(frozen=True, slots=True)
class Abort:
    """Forget a request."""

    request: int


@dataclasses.dataclass(frozen=True, slots=True)
class Close:
    """Forget a conversation."""

    session: Any


Command = Submit | Abort | Close


class _Mailbox:
    """What one client waits for, and what has arrived for it."""

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}  # the client's number to the engine's
        self.sessions: set[Any] = set()
        self.results: list[tuple[int, Generation]] = []
        self.arrived = asyncio.Event()


class EngineHost:
    """Runs an engine for its clients; every method is a remote call.

    The engine is stepped in a task of its own, so it works while clients do not ask.
    Calls run between steps, hence new weights never come in the middle of one.

    Args:
        factory: Builds the engine.
    """

    def __init__(self, factory: Callable[[], GenerationEngine]) -> None:
        """Build the engine."""
        self._engine = factory()
        self._mailboxes: dict[str, _Mailbox] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._weights: tuple[int, str] | None = None  # version and checksum
        self._coming: tuple[tuple[int, str], asyncio.Event] | None = None
        self._is_new = True

    async def connect(self) -> bool:
        """Return whether the caller is the first one here."""
        is_new, self._is_new = self._is_new, False
        return is_new

    async def exchange(
        self, client: str, commands: Sequence[Command], wait_s: float
    ) -> list[tuple[int, Generation]]:
        """Take commands, return results.

        Args:
            client: Who asks.
            commands: In this order.
            wait_s: How long to wait for a first result while requests are unfinished.

        Returns:
            Finished requests by the client's numbers.

        Raises:
            Exception: What the engine raised since it was last given weights.
        """
        box = self._mailboxes.setdefault(client, _Mailbox())
        for command in commands:
            self._apply(client, box, command)
        if self._engine.num_unfinished and self._stepping is None:
            self._stepping = asyncio.create_task(self._step_until_idle())
        if box.requests and not box.results and self._failure is None:
            box.arrived.clear()
            try:
                await asyncio.wait_for(box.arrived.wait(), wait_s)
            except TimeoutError:
                return []
        if self._failure is not None:
            raise self._failure
        results, box.results = box.results, []
        return results

    async def claim_weights(self, version: int, checksum: str, is_older: bool) -> bool:
        """Say whether the caller shall send weights.

        One client sends each version; the others wait here until it has arrived.

        Args:
            version: Of the caller's weights.
            checksum: Tells apart different weights with one version.
            is_older: Whether the caller went back to this version on purpose. Without
                it an older version is ignored: a client that has just started must not
                undo what the others brought.
        """
        wanted = (version, checksum)
        while self._coming is not None:
            _, arrived = self._coming
            try:
                await asyncio.wait_for(arrived.wait(), _WEIGHTS_TIMEOUT_S)
            except TimeoutError:
                if self._coming is not None and self._coming[1] is arrived:
                    self._coming = None
        held = self._weights
        if held == wanted or (held and version < held[0] and not is_older):
            return False
        self._coming = (wanted, asyncio.Event())
        return True

    async def set_weights(
        self, packed: Mapping[str, np.ndarray], version: int, checksum: str
    ) -> None:
        """Take the weights that :meth:`claim_weights` asked for."""
        try:
            self._engine.update_weights(weights.unpack(packed).items(), version)
            self._weights, self._failure = (version, checksum), None
        finally:
            if self._coming is not None:
                self._coming[1].set()
                self._coming = None

    async def drain_stats(self) -> dict[str, int]:
        """Return the engine's counters and set them to zero.

        Each count goes to one client, so that the clients' sums are right.
        """
        stats = self._engine.stats()
        self._engine.reset_stats()
        return stats

    async def start(self) -> None:
        """Start the engine."""
        self._engine.start()

    async def sleep(self) -> None:
        """Let the engine release memory."""
        self._engine.sleep()

    async def wake_up(self) -> None:
        """Let the engine take its memory back."""
        self._engine.wake_up()

    def _apply(self, client: str, box: _Mailbox, command: Command) -> None:
        match command:
            case Submit(session, request, history, params):
                key = (client, session)
                if session not in box.sessions:
                    self._engine.open(key)
                    box.sessions.add(session)
                number = self._engine.submit(key, history, params, extends=False)
                box.requests[request] = number
                self._owners[number] = (client, request)
            case Abort(request):
                number = box.requests.pop(request, None)
                if number is not None:
                    self._owners.pop(number)
                    self._engine.abort(number)
            case Close(session):
                if session in box.sessions:
                    box.sessions.remove(session)
                    self._engine.close((client, session))

    async def _step_until_idle(self) -> None:
        try:
            while self._engine.num_unfinished:
                for done in self._engine.step():
                    self._post(done)
                await asyncio.sleep(0)  # let calls in
        except Exception as error:  # any: the clients are told, each by its next call
            self._failure = error
            for box in self._mailboxes.values():
                box.arrived.set()
        finally:
            self._stepping = None

    def _post(self, done: Generation) -> None:
        client, request = self._owners.pop(done.request_id)
        box = self._mailboxes[client]
        del box.requests[request]
        box.results.append((request, done))
        box.arrived.set()
