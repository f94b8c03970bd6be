"""Ray actor that runs an engine for several clients.

The actor gets a function that builds the engine, so any engine works. Each request
carries the whole history of its conversation, so that clients can submit it again to a
new actor.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm import weights
from rllib_llm.engines.base import Generation, GenerationEngine, SamplingParams
from rllib_llm.pictures.contract import Pictures
from rllib_llm.pictures.placement import PictureRef, placed

_WEIGHTS_TIMEOUT_S = 600.0  # a client that claimed to send weights may have died


@dataclasses.dataclass(frozen=True, slots=True)
class Submit:
    """Command to continue a history.

    Attributes:
        session: The client's conversation.
        request: The client's number of the turn.
        history: All tokens of the conversation. int32 [T]
        params: Sampling parameters.
        images: Places of the conversation's pictures in the history.
        pixels: Those pictures that this actor has not got for the conversation yet.
    """

    session: Any
    request: int
    history: np.ndarray
    params: SamplingParams
    images: tuple[PictureRef, ...] = ()
    pixels: Pictures = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Abort:
    """Command to cancel a request."""

    request: int


@dataclasses.dataclass(frozen=True, slots=True)
class Close:
    """Command to delete a conversation."""

    session: Any


Command = Submit | Abort | Close


class _Mailbox:
    """Pending requests and finished results of one client."""

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}  # the client's number to the engine's
        self.sessions: dict[Any, Pictures] = {}  # open ones, with their pictures
        self.results: list[tuple[int, Generation]] = []
        self.arrived = asyncio.Event()


class EngineHost:
    """Runs an engine for its clients; every public method is a remote call.

    An asyncio task steps the engine, so that it works between the clients' calls. Calls
    run between two steps, so weights do not change within a step.

    Args:
        factory: Builds the engine.
    """

    def __init__(self, factory: Callable[[], GenerationEngine]) -> None:
        """Build the engine."""
        self._engine: Any = factory()
        self._mailboxes: dict[str, _Mailbox] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._weights: tuple[int, str] | None = None  # version and checksum
        self._pending: tuple[tuple[int, str], asyncio.Event] | None = None
        self._is_new = True

    async def connect(self) -> bool:
        """Return True to the first caller and False to all others."""
        is_new, self._is_new = self._is_new, False
        return is_new

    async def exchange(
        self, client: str, commands: Sequence[Command], wait_s: float
    ) -> list[tuple[int, Generation]]:
        """Apply a client's commands and return its results.

        Args:
            client: Id of the client.
            commands: Commands, applied in this order.
            wait_s: Maximum wait for a first result while requests are unfinished, in
                seconds.

        Returns:
            Pairs of the client's request number and result.

        Raises:
            Exception: The engine's last exception since the last weights update.
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
        """Return whether the caller must send its weights.

        One client sends each version; the others wait here until it has arrived.

        Args:
            version: Version of the caller's weights.
            checksum: Distinguishes different weights of one version.
            is_older: Whether the caller deliberately returned to an older version.
                Otherwise older versions are ignored: a client that has just started
                must not overwrite newer weights of the others.
        """
        wanted = (version, checksum)
        while self._pending is not None:
            _, arrived = self._pending
            try:
                await asyncio.wait_for(arrived.wait(), _WEIGHTS_TIMEOUT_S)
            except TimeoutError:
                # The sender died; unless another caller has taken over meanwhile.
                if self._pending is not None and self._pending[1] is arrived:
                    self._pending = None
        current = self._weights
        if current == wanted or (current and version < current[0] and not is_older):
            return False
        self._pending = (wanted, asyncio.Event())
        return True

    async def set_weights(
        self, packed: Mapping[str, np.ndarray], version: int, checksum: str
    ) -> None:
        """Load the weights that :meth:`claim_weights` requested."""
        try:
            self._engine.update_weights(weights.unpack(packed).items(), version)
            self._weights, self._failure = (version, checksum), None
        finally:  # wake the waiting clients in any case; one of them sends again
            if self._pending is not None:
                self._pending[1].set()
                self._pending = None

    # vLLM's weight transfer; the engine is a TransferEngine.

    async def init_weight_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Connect the engine to the Learners; blocks until they are there."""
        self._engine.init_weight_transfer(init_info)

    async def start_weight_update(self) -> None:
        """Prepare the engine for new weights."""
        self._engine.start_weight_update()

    async def receive_weights(self, update_info: Mapping[str, Any]) -> None:
        """Receive some of them; blocks until they have arrived."""
        self._engine.receive_weights(update_info)

    async def finish_weight_update(self, version: int) -> None:
        """Sample with the weights that have arrived."""
        self._engine.finish_weight_update(version)
        self._failure = None

    async def drain_stats(self) -> dict[str, int]:
        """Return the engine's counters and set them to zero.

        Each count goes to one client, so that sums over clients are right.
        """
        stats = self._engine.stats()
        self._engine.reset_stats()
        return stats

    async def start(self) -> None:
        """Start the engine."""
        self._engine.start()

    async def sleep(self) -> None:
        """Make the engine release its memory."""
        self._engine.sleep()

    async def wake_up(self) -> None:
        """Make the engine allocate its memory again."""
        self._engine.wake_up()

    def _apply(self, client: str, box: _Mailbox, command: Command) -> None:
        match command:
            case Submit(session, request, history, params, images, pixels):
                key = (client, session)
                if session not in box.sessions:
                    self._engine.open(key)
                    box.sessions[session] = {}
                box.sessions[session] |= pixels
                shown = {"pictures": placed(images, box.sessions[session])}
                number = self._engine.submit(
                    key, history, params, extends=False, **(shown if images else {})
                )
                box.requests[request] = number
                self._owners[number] = (client, request)
            case Abort(request):
                if request in box.requests:
                    number = box.requests.pop(request)
                    self._owners.pop(number)
                    self._engine.abort(number)
            case Close(session):
                if session in box.sessions:
                    del box.sessions[session]
                    self._engine.close((client, session))

    async def _step_until_idle(self) -> None:
        try:
            while self._engine.num_unfinished:
                for done in self._engine.step():
                    self._post(done)
                await asyncio.sleep(0)  # lets pending calls run between steps
        except Exception as error:  # any type: each client's next call raises it
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
