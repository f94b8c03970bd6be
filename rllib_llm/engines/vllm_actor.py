"""An engine in a Ray actor, shared by several EnvRunners.

The actor is found by its name: whoever comes first starts it, and whoever finds it
dead starts it anew, sends the weights again and submits its unfinished turns again.
With the same seeds and weights they give the same tokens.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import ray
import torch

from rllib_llm import weights
from rllib_llm.engines.base import Generation, GenerationEngine
from rllib_llm.engines.requests import Request, Session
from rllib_llm.engines.vllm_host import Abort, Close, Command, EngineHost, Submit
from rllib_llm.engines.vllm_sessions import HistoryEngine
from rllib_llm.errors import RLlibLLMError

logger = logging.getLogger("rllib_llm")

_Answer = TypeVar("_Answer")
_RESTARTS = "engine_restarts"
_MAX_FAILURES = 3  # in a row, without a result between them
_MAX_CALLS = 1000  # concurrent ones of all clients


class EngineDiedError(RLlibLLMError):
    """An engine's actor keeps dying."""


class ActorEngine(HistoryEngine):
    """The client's side of an engine in an actor.

    Args:
        factory: Builds the engine in the actor; it must be picklable.
        name: The actor's name; clients with one name share it.
        max_context_tokens: The hosted engine's limit.
        has_tokenizer: Whether the hosted engine can find stop strings.
        num_gpus: GPUs of the actor, a share of one if below 1. Its CPU time is not
            reserved.
        wait_s: Longest that :meth:`step` waits for a first result, in seconds, so that
            environments that answer meanwhile are not kept waiting.

    Raises:
        ConfigError: If a setting is out of range.
    """

    def __init__(
        self,
        factory: Callable[[], GenerationEngine],
        *,
        name: str,
        max_context_tokens: int,
        has_tokenizer: bool = False,
        num_gpus: float = 0.0,
        wait_s: float = 0.05,
    ) -> None:
        """Remember how to start the actor; the first request does."""
        super().__init__(
            max_context_tokens=max_context_tokens, has_tokenizer=has_tokenizer
        )
        self._factory = factory
        self._options = {
            "name": name,
            "get_if_exists": True,
            "num_cpus": 0,
            "num_gpus": num_gpus,
            "max_concurrency": _MAX_CALLS,
        }
        self._wait_s = wait_s
        self._client = uuid.uuid4().hex
        self._host: Any = None
        self._was_connected = False
        self._failures = 0
        self._outbox: list[Command] = []
        self._source: list[tuple[str, torch.Tensor]] = []
        self._stats: dict[str, int] = {_RESTARTS: 0}

    def step(self) -> list[Generation]:
        """Send what was submitted; return what has finished.

        Waits for at least one result, but not longer than ``wait_s``.

        Raises:
            EngineDiedError: If the actor dies again and again.
            RLlibLLMError: What the hosted engine raises of this kind.
        """
        if not self._requests:
            return []
        results = self._attempt(self._exchange)
        if results:
            self._failures = 0
        finished = []
        for number, done in results:
            request = self._requests.get(number)
            if request is not None:
                tokens, logps = done.token_ids.tolist(), done.logps.tolist()
                for token, logp in zip(tokens, logps, strict=True):
                    request.accept(token, logp, done.weights_version)
                finished.append(self._finish(request, done.finish))
        return finished

    def update_weights(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Send new values unless another client has; see :class:`GenerationEngine`.

        The tensors are kept by reference and sent again to an actor that was started
        anew, so they must keep the values of this version until the next one.
        """
        is_older = version < self._version
        self._source = [(name, tensor.detach()) for name, tensor in named_tensors]
        self._version = version
        if self._host is not None:
            self._attempt(lambda host: self._send_weights(host, is_older))

    def start(self) -> None:
        """Start the actor and its engine, if they do not run yet."""
        self._attempt(lambda host: ray.get(host.start.remote()))

    def sleep(self) -> None:
        """Let the hosted engine release memory, if it was started."""
        if self._host is not None:
            self._attempt(lambda host: ray.get(host.sleep.remote()))

    def wake_up(self) -> None:
        """Let the hosted engine take its memory back."""
        if self._host is not None:
            self._attempt(lambda host: ray.get(host.wake_up.remote()))

    def stats(self) -> dict[str, int]:
        """Return the counters; see :meth:`GenerationEngine.stats`.

        Work for all clients is counted once: by the client that asks first. Beside
        the hosted engine's there is ``engine_restarts``.
        """
        if self._host is not None:
            drained = self._attempt(self._drain)
            for name, value in drained.items():
                self._stats[name] = self._stats.get(name, 0) + value
        return dict(self._stats)

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._stats = dict.fromkeys(self._stats, 0)

    # The actor -----------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        self._outbox.append(_submit(request))

    def _cancel(self, request: Request) -> None:
        self._outbox.append(Abort(request.request_id))

    def _forget(self, session: Session) -> None:
        self._outbox.append(Close(session.session_id))

    def _exchange(self, host: Any) -> list[tuple[int, Generation]]:
        # Even if the engine raises, it has taken them.
        commands, self._outbox = self._outbox, []
        return ray.get(host.exchange.remote(self._client, commands, self._wait_s))

    def _drain(self, host: Any) -> dict[str, int]:
        if self._outbox and not self._requests:  # closed conversations
            self._exchange(host)
        return ray.get(host.drain_stats.remote())

    def _send_weights(self, host: Any, is_older: bool = False) -> None:
        checksum = _checksum(self._source)
        claim = host.claim_weights.remote(self._version, checksum, is_older)
        if ray.get(claim):
            packed = ray.put(weights.pack(dict(self._source)))
            ray.get(host.set_weights.remote(packed, self._version, checksum))

    def _attempt(self, call: Callable[[Any], _Answer]) -> _Answer:
        """Make a remote call, with a new actor if the old one is lost.

        The engine's own errors are raised as they are. Any other exception in it is
        taken for its death: what state it left is unknown.
        """
        while True:
            try:
                return call(self._connect())
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, RLlibLLMError):
                    raise error.cause from None
                self._give_up_host(error)
            except ray.exceptions.RayActorError as error:
                self._give_up_host(error)

    def _connect(self) -> Any:
        """Return the actor, with this client's weights in it."""
        if self._host is None:
            host = ray.remote(EngineHost).options(**self._options).remote(self._factory)
            is_new = ray.get(host.connect.remote())
            if is_new and self._was_connected:
                self._stats[_RESTARTS] += 1
            self._was_connected, self._host = True, host
            if self._source:
                self._send_weights(host)
        return self._host

    def _give_up_host(self, error: Exception) -> None:
        """Forget an actor that failed, and plan to submit unfinished turns again."""
        host, self._host = self._host, None
        self._failures += 1
        is_hopeless = getattr(error, "actor_init_failed", False)
        if is_hopeless or self._failures > _MAX_FAILURES:
            raise EngineDiedError(
                f"The engine's actor {self._options['name']!r} failed "
                f"{self._failures} times without a result between. If memory ran out, "
                "lower num_envs_per_env_runner or max_context_tokens, or see "
                f"engine_kwargs. Last error: {error}"
            ) from error
        if host is not None:
            ray.kill(host)
        logger.warning(
            "The engine's actor %r is lost (%s); starting it again with %s turns.",
            self._options["name"],
            type(error).__name__,
            len(self._requests),
        )
        self._outbox = [_submit(request) for request in self._requests.values()]


def _submit(request: Request) -> Submit:
    return Submit(
        request.session.session_id,
        request.request_id,
        np.array(request.session.history, np.int32),
        request.params,
    )


def _checksum(named_tensors: list[tuple[str, torch.Tensor]]) -> str:
    """Return what tells two sets of weights apart, from a few values of each tensor."""
    print_ = weights.fingerprint(tensor for _, tensor in named_tensors)
    return hashlib.blake2b(print_.tobytes(), digest_size=8).hexdigest()
