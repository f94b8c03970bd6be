"""Requests of one episode, between the HTTP server and the environment's thread."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
import secrets
import threading
from typing import Any

from rllib_llm.openai_api.request_fields import RequestError
from rllib_llm.openai_api.requests import ParsedCall, Sampling, ServedModels
from rllib_llm.openai_api.responses import Choice

MOST_WAITING = 256


@dataclasses.dataclass(frozen=True)
class ProgramEnd:
    """The end of a program.

    Attributes:
        result: Its return value.
        error: Description of its failure; None if it succeeded.
    """

    result: Any = None
    error: str | None = None


class Interrupted(Exception):
    """The episode was given up while it waited for its program."""


class Call:
    """One reply that a program waits for.

    Its future belongs to the server's event loop; all other attributes are protected by
    the session's lock.

    Args:
        parsed: The request.
        sample: Number of the reply among those to the request.
        digest: Digest of the request's body, by which a repeated request is recognised.
        loop: The server's event loop.
    """

    def __init__(
        self,
        parsed: ParsedCall,
        sample: int,
        digest: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.parsed, self.sample, self.digest = parsed, sample, digest
        self._loop = loop
        self.future: asyncio.Future[Choice] = loop.create_future()
        self.is_taken = self.is_orphan = self.is_dropped = False
        self._outcome: Choice | RequestError | None = None

    @property
    def is_answered(self) -> bool:
        """True once the reply or the error is there (in the loop)."""
        return self._outcome is not None

    def set(self, outcome: Choice | RequestError) -> None:
        """Give the reply, or the error, to the program; may be called in any thread."""
        try:
            self._loop.call_soon_threadsafe(self._set, outcome)
        except RuntimeError:  # the loop is closed: the process ends
            return

    def renew(self) -> asyncio.Future[Choice]:
        """Return a new future, for the program's second attempt (in the loop)."""
        self.future = self._loop.create_future()
        if self._outcome is not None:
            self._resolve(self._outcome)
        return self.future

    def _set(self, outcome: Choice | RequestError) -> None:
        self._outcome = outcome
        self._resolve(outcome)

    def _resolve(self, outcome: Choice | RequestError) -> None:
        if self.future.done():
            return  # the program has given up the request
        if isinstance(outcome, RequestError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Session:
    """Queue of an episode's requests, with the key that names the episode.

    Args:
        sampling: Sampling settings of each policy, by its name.

    Attributes:
        episode: Name of the episode, a part of its address.
        key: Key that its requests must carry.
        models: The models that requests may name.
        ended: Reason that the episode accepts no more requests; None while it does.
    """

    def __init__(self, sampling: dict[str, Sampling]) -> None:
        self.episode = secrets.token_hex(8)
        self.key = f"sk-{secrets.token_urlsafe(24)}"
        self.models = ServedModels(sampling)
        self.ended: str | None = None
        self._events: queue.SimpleQueue[Call | ProgramEnd | Interrupted] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._open: dict[Call, None] = {}  # in order

    # Server ---------------------------------------------------------------------------

    def submit(self, parsed: ParsedCall, digest: str) -> list[Call]:
        """Queue a request, and return the call of each of its replies.

        If the program repeats a request whose answer it did not wait for, the calls are
        those of the first attempt: nothing is sampled that the program does not read.

        Raises:
            RequestError: If the episode has ended, or too many requests wait.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            self.require_running()
            # By sample: the program may have given up the same request twice.
            orphans = {
                c.sample: c
                for c in reversed(self._open)
                if c.is_orphan and c.digest == digest
            }
            if len(orphans) == parsed.samples:
                adopted = [orphans[i] for i in range(parsed.samples)]
                for call in adopted:
                    call.is_orphan = False
                    call.renew()
                return adopted
            waiting = sum(not call.is_answered for call in self._open)
            if waiting + parsed.samples > MOST_WAITING:
                raise RequestError(
                    f"{waiting} requests of this episode wait; {MOST_WAITING} "
                    "may. Wait for their replies first.",
                    status=429,
                    code="too_many_requests",
                )
            calls = [Call(parsed, i, digest, loop) for i in range(parsed.samples)]
            self._open.update(dict.fromkeys(calls))
        for call in calls:
            self._events.put(call)
        return calls

    def finish(self, calls: list[Call]) -> None:
        """Forget calls whose replies the program has."""
        with self._lock:
            for call in calls:
                self._open.pop(call, None)

    def orphan(self, calls: list[Call]) -> None:
        """Keep calls whose program has disconnected, in case it repeats the request."""
        with self._lock:
            for call in calls:
                call.is_orphan = True

    def require_running(self) -> None:
        """Raise a RequestError if the episode has ended."""
        if self.ended is not None:
            raise RequestError(
                f"This episode has ended: {self.ended}. Its key is no longer valid.",
                status=410,
                code="episode_ended",
            )

    # Environment ----------------------------------------------------------------------

    def put_end(self, end: ProgramEnd) -> None:
        """Report the end of the program."""
        self._events.put(end)

    def interrupt(self) -> None:
        """Make the environment's call return with an error."""
        self._events.put(Interrupted("The episode was given up."))

    def next_event(self, *, block: bool) -> Call | ProgramEnd | None:
        """Return the next request or the end; None if there is none and not ``block``.

        Raises:
            Interrupted: After :meth:`interrupt`.
        """
        while True:
            try:
                event = self._events.get(block=block)
            except queue.Empty:
                return None
            if isinstance(event, Interrupted):
                raise event
            if isinstance(event, ProgramEnd) or self._is_wanted(event):
                return event

    def take(self, call: Call) -> bool:
        """Mark a call as given to its policy; False if its program has left."""
        with self._lock:
            if not self._wants(call):
                return False
            call.is_taken = True
            return True

    def close(self, reason: str) -> None:
        """End the episode: waiting requests and later ones are refused."""
        with self._lock:
            if self.ended is not None:
                return
            self.ended = reason
            waiting, self._open = list(self._open), {}
        for call in waiting:
            call.set(
                RequestError(
                    f"The episode has ended: {reason}.",
                    status=410,
                    code="episode_ended",
                )
            )

    def _is_wanted(self, call: Call) -> bool:
        with self._lock:
            return self._wants(call)

    def _wants(self, call: Call) -> bool:
        if call.is_orphan and not call.is_taken:
            self._open.pop(call, None)  # a repeated request then starts a new call
            call.is_dropped = True
        return not call.is_dropped
