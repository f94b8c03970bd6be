"""Run calls of tools: time limits, retries, kept results, coroutines at once."""

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
from typing import Any

from rllib_llm.tools import process
from rllib_llm.tools.tool import Tool, ToolTimeout, ToolUnavailable

logger = logging.getLogger("rllib_llm")

_GRACE_S = 1.0  # how long a cancelled coroutine may take to end
_BACKOFF_S = 0.1  # before the first retry; doubles, up to the most
_MOST_BACKOFF_S = 5.0
_MOST_KEPT = 4096
# What a tool raises where a machine or a network is at fault.
_INFRASTRUCTURE = (ToolUnavailable, ConnectionError)
# What it may well raise to tell the model something.
_EXPECTED = (ValueError, LookupError, ArithmeticError, process.ProcessError)

Wait = Callable[[], Any]


class Kept:
    """Results of pure tools, the most recently used ones, for all threads."""

    def __init__(self, most: int = _MOST_KEPT):
        self._most = most
        self._texts: OrderedDict[Any, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> str | None:
        """Return a result, or None."""
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
            return self._texts.get(key)

    def put(self, key: Any, text: str) -> None:
        """Keep a result."""
        with self._lock:
            self._texts[key] = text
            if len(self._texts) > self._most:
                self._texts.popitem(last=False)


KEPT = Kept()


def key_of(tool: Tool, arguments: dict[str, Any]) -> Any:
    """Return what identifies a call of a pure tool."""
    return tool.run, json.dumps(arguments, sort_keys=True)


def start(tool: Tool, arguments: dict[str, Any]) -> Wait:
    """Begin a call; return what waits for its result.

    Coroutines run from here on. Everything else runs when it is waited for, so that
    calls take effect in order.
    """
    settings = tool.settings
    if tool.is_async:
        return _LOOPS.submit(tool, arguments)
    if settings.process:
        return lambda: process.call(tool.run, arguments, settings.timeout_s)
    if settings.timeout_s is not None:
        return lambda: _in_thread(lambda: tool.run(**arguments), settings.timeout_s)
    return lambda: tool.run(**arguments)


def finish(tool: Tool, arguments: dict[str, Any], wait: Wait) -> tuple[Any, int]:
    """Wait for a call's result; repeat it while its tool cannot be reached.

    Returns:
        The result, and the number of retries.

    Raises:
        ToolUnavailable: If the tool cannot be reached after all retries.
        ToolTimeout: If it took longer than its limit.
        Exception: What the tool raised.
    """
    retry = 0
    while True:
        try:
            return wait(), retry
        except _INFRASTRUCTURE as error:
            if retry == tool.settings.retries:
                raise ToolUnavailable(
                    f"The tool {tool.name!r} failed {retry + 1} time(s), last by "
                    f"{type(error).__name__}: {error}"
                ) from error
        time.sleep(min(_MOST_BACKOFF_S, _BACKOFF_S * 2**retry))
        wait = start(tool, arguments)
        retry += 1


def told(tool: Tool, error: BaseException) -> str:
    """Return what the model reads of an exception; log what looks like a bug."""
    if not isinstance(error, _EXPECTED):
        key = (tool.name, type(error))
        if key not in _LOGGED:
            _LOGGED.add(key)
            logger.warning(
                "The tool %r raised %s. The model reads it as a result; further ones "
                "are counted in tool_errors only.",
                tool.name,
                type(error).__name__,
                exc_info=error,
            )
    # str(KeyError) is the repr of its argument.
    what = error.args[0] if isinstance(error, KeyError) and error.args else error
    return f"Error: {what}" if str(what) else f"Error: {type(error).__name__}"


_LOGGED: set[tuple[str, type]] = set()


def _in_thread(call: Callable[[], Any], timeout_s: float) -> Any:
    """Return what ``call`` returns; a call that takes longer is left to itself."""
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
        """Start a coroutine function; return what waits for it."""
        timeout_s, loop = tool.settings.timeout_s, self.get()

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
                if not future.done():  # it blocks the loop: others need a new one
                    self._give_up(loop)
                elif timeout_s is None:
                    raise  # the tool's own
                raise ToolTimeout from error

        return wait

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is loop:
                self._loop = None
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(loop.stop)


_LOOPS = _Loops()


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that tools run in; it has a thread of its own."""
    return _LOOPS.get()
