"""Threads that run one environment each, so that slow environments overlap."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rllib_llm.env_runner.remote_env import RemoteEnv, RemoteMultiAgentEnv
from rllib_llm.envs.process_env import ProcessEnv

if TYPE_CHECKING:
    from collections.abc import Hashable


@dataclasses.dataclass(slots=True)
class EnvReply:
    """Outcome of one environment call.

    Attributes:
        token: The caller's identifier of the call, returned unchanged.
        value: The return value, if the call succeeded.
        error: The exception, if it failed; SystemExit and KeyboardInterrupt count.
        seconds: Wall time of the call, without its wait for the thread.
    """

    token: Any
    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


_END_EPISODE = object()  # in the queue of calls


class EnvWorker:
    """Runs the calls of one environment, one after the other, in its own thread.

    The thread is a daemon: an environment that hangs can be abandoned without keeping
    the process alive.

    Args:
        make: Builds the environment (in the thread, at the first call).
        replies: Queue that receives the outcomes.
    """

    def __init__(
        self, make: Callable[[], Any], replies: queue.SimpleQueue[EnvReply]
    ) -> None:
        self._make = make
        self._replies = replies
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._env: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def call(
        self,
        token: Hashable,
        method: str | Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Request a call; an EnvReply holds the outcome.

        Args:
            token: Identifies the call in the reply.
            method: Name of the environment's method, or a function of the environment.
            args: Arguments, after the environment.
            kwargs: Keyword arguments.
        """
        self._calls.put((token, method, args, kwargs))

    @property
    def is_running(self) -> bool:
        """True until the thread has ended, which may be some time after close()."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Close the environment and end the thread once its calls are done."""
        self._calls.put(None)

    def abandon(self) -> None:
        """Close the environment, at once if it runs in a process of its own."""
        self.close()
        if isinstance(self._env, ProcessEnv | RemoteEnv | RemoteMultiAgentEnv):
            # Without the process, a hanging call returns with an error, and the
            # thread ends.
            self._env.kill()
        elif hasattr(self._env, "unwrapped"):
            interrupt = getattr(self._env.unwrapped, "interrupt", None)
            if interrupt is not None:
                interrupt()

    def end_episode(self) -> None:
        """Announce that no step of the episode follows, to environments that wait."""
        self._calls.put(_END_EPISODE)

    def _run(self) -> None:
        env = None
        while (item := self._calls.get()) is not None:
            if item is _END_EPISODE:
                end = getattr(getattr(env, "unwrapped", None), "end_episode", None)
                if end is not None:
                    end()
                continue
            token, method, args, kwargs = item
            began = time.perf_counter()
            try:
                # Built here and not in __init__, so that slow builds overlap as well.
                if env is None:
                    env = self._env = self._make()
                if callable(method):
                    value = method(env, *args, **kwargs)
                else:
                    value = getattr(env, method)(*args, **kwargs)
                seconds = time.perf_counter() - began
                self._replies.put(EnvReply(token, value=value, seconds=seconds))
            # BaseException: sys.exit() in an environment must fail its own episode and
            # not end the thread without a reply.
            except BaseException as error:
                self._replies.put(EnvReply(token, error=error))
        if env is not None:
            env.close()
