"""One thread that steps engines for any number of requests at the same time."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from rllib_llm.engines.base import Generation, GenerationEngine, SamplingParams
from rllib_llm.errors import RLlibLLMError
from rllib_llm.torch_threads import torch_settings

PROGRESS_S = 0.05  # time between two reports of the tokens so far

_T = TypeVar("_T")
# A function for the engines' thread, and the future that receives its error.
_Command = tuple[Callable[[], None], Future[Any]]
logger = logging.getLogger("rllib_llm")


class EngineStoppedError(RLlibLLMError, RuntimeError):
    """The server has been stopped, or its engine has failed."""


@dataclasses.dataclass(slots=True, eq=False)
class _Pending:
    """A request at an engine.

    Attributes:
        engine: The engine.
        session: Name of the session.
        future: Receives the result.
        progress: Called with the tokens so far; None: they are not reported.
        closes: Whether the session ends with the request.
        reported: Number of tokens that were reported.
    """

    engine: GenerationEngine
    session: Hashable
    future: Future[Generation]
    progress: Callable[[list[int]], None] | None
    closes: bool
    reported: int = 0


class EngineLoop:
    """Runs engines in a thread of its own, which alone calls them.

    Requests of all clients decode in the same batches: the thread takes new ones
    between two steps of the engines.

    Args:
        engines: The engines; several policies may share one.
        num_threads: torch's threads; None changes nothing.
    """

    def __init__(
        self, engines: Iterable[GenerationEngine], num_threads: int | None = None
    ):
        self._engines = list({id(e): e for e in engines}.values())
        self._num_threads = num_threads
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._numbers = itertools.count()
        self._next_report = 0.0
        self._lock = threading.Lock()
        self._is_stopped = False
        self.failure: str | None = None
        self._thread = threading.Thread(
            target=self._run, daemon=True, name="serving_engines"
        )
        self._thread.start()

    @property
    def num_pending(self) -> int:
        """Number of requests at the engines."""
        return len(self._pending)

    def call(self, function: Callable[[], _T]) -> Future[_T]:
        """Call a function in the engines' thread, between two steps."""
        future: Future[_T] = Future()
        self._put(lambda: _set(future, function()), future)
        return future

    def generate(
        self,
        engine: GenerationEngine,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        open_settings: dict[str, Any] | None = None,
        progress: Callable[[list[int]], None] | None = None,
    ) -> Future[Generation]:
        """Sample a continuation in a session of its own.

        Cancel the future to give the request up.

        Args:
            engine: The engine.
            prompt: Ids of the prompt.
            params: Sampling parameters.
            open_settings: Keyword arguments of the engine's ``open``.
            progress: Called with all tokens so far, in the engines' thread, at most
                every 50 ms; it must return at once.
        """
        session = ("served", next(self._numbers))
        future: Future[Generation] = Future()

        def command() -> None:
            if future.cancelled():
                return
            engine.open(session, **(open_settings or {}))
            try:
                request_id = engine.submit(session, prompt, params)
            except BaseException:
                engine.close(session)
                raise
            self._await(engine, session, request_id, future, progress, closes=True)

        self._put(command, future)
        return future

    def submit(
        self,
        engine: GenerationEngine,
        session: Hashable,
        ids: Sequence[int],
        params: SamplingParams,
        extends: bool,
    ) -> Future[Generation]:
        """Sample the next turn of an open session."""
        future: Future[Generation] = Future()

        def command() -> None:
            request_id = engine.submit(session, ids, params, extends=extends)
            self._await(engine, session, request_id, future, None, closes=False)

        self._put(command, future)
        return future

    def stop(self) -> None:
        """End the thread; unfinished requests fail."""
        with self._lock:
            self._is_stopped = True
            self._commands.put(None)
        self._thread.join()

    # Engines' thread ------------------------------------------------------------------

    def _put(self, command: Callable[[], None], future: Future[Any]) -> None:
        with self._lock:
            if self._is_stopped:
                raise EngineStoppedError(
                    self.failure
                    or "The server is shutting down. Send the request again later."
                )
            self._commands.put((command, future))

    def _await(
        self,
        engine: GenerationEngine,
        session: Hashable,
        request_id: int,
        future: Future[Generation],
        progress: Callable[[list[int]], None] | None,
        *,
        closes: bool,
    ) -> None:
        key = (id(engine), request_id)
        self._pending[key] = _Pending(engine, session, future, progress, closes)

        def give_up(done: Future[Generation]) -> None:
            if done.cancelled():
                self._commands.put((lambda: self._drop(key), Future()))

        future.add_done_callback(give_up)

    def _drop(self, key: tuple[int, int]) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.engine.abort(key[1])
            if pending.closes:
                pending.engine.close(pending.session)

    def _run(self) -> None:
        error: BaseException = EngineStoppedError("The server is shutting down.")
        try:
            with torch_settings(self._num_threads):
                while self._take_commands():
                    self._step()
        except BaseException as failure:
            # The replica reports itself as unhealthy, and Ray Serve replaces it.
            logger.exception("The engine of the server failed")
            self.failure = f"The engine failed: {type(failure).__name__}: {failure}"
            error = EngineStoppedError(self.failure)
        with self._lock:
            self._is_stopped = True
        self._fail_all(error)

    def _take_commands(self) -> bool:
        """Run waiting commands; without work wait for one. Return False at the end."""
        is_idle = not any(engine.num_unfinished for engine in self._engines)
        while True:
            try:
                command = self._commands.get(block=is_idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            function, future = command
            try:
                function()
            except Exception as error:  # of one request: the engine goes on
                _fail(future, error)
            is_idle = False

    def _step(self) -> None:
        for engine in self._engines:
            if not engine.num_unfinished:
                continue
            for result in engine.step():
                pending = self._pending.pop((id(engine), result.request_id), None)
                if pending is None:
                    continue
                if pending.closes:
                    engine.close(pending.session)
                _set(pending.future, result)
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + PROGRESS_S
            self._report()

    def _report(self) -> None:
        for (_, request_id), pending in self._pending.items():
            if pending.progress is None:
                continue
            tokens = list(pending.engine.sampled_so_far(request_id))
            if len(tokens) > pending.reported:
                pending.reported = len(tokens)
                pending.progress(tokens)

    def _fail_all(self, error: BaseException) -> None:
        for pending in self._pending.values():
            _fail(pending.future, error)
        self._pending.clear()
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if command is not None:
                _fail(command[1], error)


class SharedEngine:
    """An engine as one conversation sees it: its own requests alone.

    :class:`~rllib_llm.inference.conversation.Conversation` calls it in its thread.

    Args:
        engine: The engine.
        loop: The thread that steps it.
    """

    def __init__(self, engine: GenerationEngine, loop: EngineLoop):
        self._engine, self._loop = engine, loop
        self._waiting: list[Future[Generation]] = []
        self._numbers = itertools.count()

    @property
    def num_unfinished(self) -> int:
        """Number of requests whose result :meth:`step` has not returned."""
        return len(self._waiting)

    def open(self, session: Hashable, **settings: Any) -> None:
        """Start a conversation; see :meth:`GenerationEngine.open`."""
        self._loop.call(lambda: self._engine.open(session, **settings)).result()

    def submit(
        self,
        session: Hashable,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        extends: bool = True,
    ) -> int:
        """Request a continuation; see :meth:`GenerationEngine.submit`."""
        future = self._loop.submit(self._engine, session, ids, params, extends)
        self._waiting.append(future)
        return next(self._numbers)

    def step(self) -> list[Generation]:
        """Wait for all requests; return their results."""
        waiting, self._waiting = self._waiting, []
        return [future.result() for future in waiting]

    def close(self, session: Hashable) -> None:
        """Delete a conversation; see :meth:`GenerationEngine.close`."""
        self._loop.call(lambda: self._engine.close(session)).result()


def _set(future: Future[Any], result: Any) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def _fail(future: Future[Any], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
