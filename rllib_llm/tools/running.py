"""Execution of tool calls: time limits, retries, result cache, concurrency."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rllib_llm.tools import process
from rllib_llm.tools.tool import Tool, ToolTimeout, ToolUnavailable

if TYPE_CHECKING:
    from collections.abc import Hashable

logger = logging.getLogger("rllib_llm")

_GRACE_S = 1.0  # for a cancelled coroutine to end
_BACKOFF_S = 0.1  # before the first retry; doubles, up to the maximum
_MOST_BACKOFF_S = 5.0
_MOST_CACHED = 4096
# Exceptions that blame a machine or a network: retried, never shown to the model.
_INFRASTRUCTURE = (ToolUnavailable, ConnectionError)
# Exceptions that a tool may raise on purpose, to inform the model.
_EXPECTED = (ValueError, LookupError, ArithmeticError, process.ProcessError)

Wait = Callable[[], Any]


class ResultCache:
    """A thread-safe LRU cache of the results of pure tools."""

    def __init__(self, most: int = _MOST_CACHED):
        self._most = most
        self._texts: OrderedDict[Any, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> str | None:
        """Return a cached result, or None."""
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
            return self._texts.get(key)

    def put(self, key: Hashable, text: str) -> None:
        """Add a result, and evict the least recently used one if the cache is full."""
        with self._lock:
            self._texts[key] = text
            if len(self._texts) > self._most:
                self._texts.popitem(last=False)


RESULT_CACHE = ResultCache()


def key_of(tool: Tool, arguments: dict[str, Any]) -> Any:
    """Return the cache key of a call of a pure tool."""
    return tool.run, json.dumps(arguments, sort_keys=True)


def start(tool: Tool, arguments: dict[str, Any]) -> Wait:
    """Start a call; return a function that waits for its result.

    Coroutines start here. All other tools run when the result is awaited, so that
    their side effects happen in the order of the calls.
    """
    settings = tool.settings
    if tool.is_async:
        return _LOOPS.submit(tool, arguments)
    if settings.process:
        return lambda: process.call(tool.run, arguments, settings.timeout_s)
    timeout_s = settings.timeout_s
    if timeout_s is not None:
        return lambda: _in_thread(lambda: tool.run(**arguments), timeout_s)
    return lambda: tool.run(**arguments)


def finish(tool: Tool, arguments: dict[str, Any], wait: Wait) -> tuple[Any, int]:
    """Wait for the result of a call; retry while the tool is unavailable.

    Returns:
        The result, and the number of retries.

    Raises:
        ToolUnavailable: If all retries fail.
        ToolTimeout: If the call exceeds its time limit.
        Exception: Any other exception of the tool.
    """
    retry = 0
    while True:
        try:
            return wait(), retry
        except _INFRASTRUCTURE as error:
            if retry == tool.settings.retries:
                raise ToolUnavailable(
                    f"The tool {tool.name!r} failed {retry + 1} time(s); the last "
                    f"error was {type(error).__name__}: {error}. Check that its "
                    "service is running, or raise retries."
                ) from error
        time.sleep(min(_MOST_BACKOFF_S, _BACKOFF_S * 2**retry))
        wait = start(tool, arguments)
        retry += 1


def error_text(tool: Tool, error: BaseException) -> str:
    """Return the model's text for an exception; log exceptions that look like bugs."""
    if not isinstance(error, _EXPECTED):
        key = (tool.name, type(error))
        if key not in _LOGGED:
            _LOGGED.add(key)
            logger.warning(
                "The tool %r raised %s. The model reads it as a result; later ones "
                "are only counted in tool_errors.",
                tool.name,
                type(error).__name__,
                exc_info=error,
            )
    # str(KeyError) is the repr of its argument.
    what = error.args[0] if isinstance(error, KeyError) and error.args else error
    return f"Error: {what}" if str(what) else f"Error: {type(error).__name__}"


_LOGGED: set[tuple[str, type]] = set()


def _in_thread(call: Callable[[], Any], timeout_s: float) -> Any:
    """Return the result of ``call``; after the time limit its thread is abandoned."""
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((call(), None))
        except (Exception, SystemExit) as error:
            done.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        value, error = done.get(timeout=timeout_s)
    except queue.Empty:
        raise ToolTimeout from None
    if error is not None:
        raise error
    return value


class _Loops:
    """One event loop in a thread, so that coroutines of all turns share clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the running loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True).start()
            return self._loop

    def submit(self, tool: Tool, arguments: dict[str, Any]) -> Wait:
        """Start a coroutine function; return a function that waits for its result."""
        timeout_s, loop = tool.settings.timeout_s, self.get()
        if timeout_s is not None:
            timeout_s += tool.connect_s

        async def limited() -> Any:
            return await asyncio.wait_for(tool.run(**arguments), timeout_s)

        future = asyncio.run_coroutine_threadsafe(limited(), loop)
        began = time.perf_counter()

        def wait() -> Any:
            left = None
            if timeout_s is not None:
                left = max(0.0, began + timeout_s + _GRACE_S - time.perf_counter())
            try:
                return future.result(left)
            except TimeoutError as error:
                if not future.done():  # it blocks the loop: later calls need another
                    self._give_up(loop)
                elif timeout_s is None:
                    raise  # raised by the tool itself
                raise ToolTimeout from error

        return wait

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is loop:
                self._loop = None
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(loop.stop)


_LOOPS = _Loops()


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that runs tools, in a thread of its own."""
    return _LOOPS.get()
