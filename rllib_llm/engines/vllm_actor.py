"""Engine in a Ray actor that several EnvRunners share.

Clients find the actor by its name. The first client starts it. A client that finds it
dead starts a new one, sends the weights and submits its unfinished turns again; with
the same seeds and weights they give the same tokens.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import ray
import torch

from rllib_llm import weights
from rllib_llm.engines.base import Generation, GenerationEngine, SessionId
from rllib_llm.engines.requests import Request, Session
from rllib_llm.engines.vllm_host import Abort, Close, Command, EngineHost, Submit
from rllib_llm.engines.vllm_sessions import HistoryEngine
from rllib_llm.errors import CallTimeoutError, RLlibLLMError
from rllib_llm.remote_calls import TimeLimit, result_of

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from rllib_llm.pictures.spec import ImageSpec

logger = logging.getLogger("rllib_llm")

_Answer = TypeVar("_Answer")
_RESTARTS = "engine_restarts"
_MAX_FAILURES = 3  # consecutive ones, without a result between them
_MAX_CALLS = 1000  # concurrent calls of all clients
_LIMIT = TimeLimit(1800.0, "limit")


class EngineDiedError(RLlibLLMError):
    """An engine's actor failed repeatedly."""


class ActorEngine(HistoryEngine):
    """Client of an engine in an actor.

    Args:
        factory: Builds the engine in the actor; it must be picklable.
        name: The actor's name; clients with one name share it.
        max_context_tokens: The limit of the engine in the actor.
        has_tokenizer: Whether the engine in the actor can find stop strings.
        num_gpus: GPUs of the actor, a share of one if below 1. Its CPU time is not
            reserved.
        resources: Custom resources of the actor, which choose its node.
        wait_s: Maximum time that :meth:`step` waits for a first result, in seconds.
            Environments that reply meanwhile wait at most this long.
        limit: The longest time of a call. An actor that does not answer counts as
            dead, and is started anew.
        pictures: Picture inputs of the engine in the actor; None: it reads text alone.
        from_learners: Whether the Learners send weights to the actor. Clients then only
            announce versions, and an actor that dies is not replaced, since no client
            has its weights.

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
        resources: Mapping[str, float] | None = None,
        wait_s: float = 0.05,
        limit: TimeLimit = _LIMIT,
        from_learners: bool = False,
        pictures: ImageSpec | None = None,
    ) -> None:
        """Store the actor's options; the first request starts it."""
        super().__init__(
            max_context_tokens=max_context_tokens,
            has_tokenizer=has_tokenizer,
            pictures=pictures,
        )
        self._factory = factory
        self._options = {
            "name": name,
            "get_if_exists": True,
            "num_cpus": 0,
            "num_gpus": num_gpus,
            "resources": dict(resources or {}),
            "max_concurrency": _MAX_CALLS,
        }
        self._wait_s, self._limit = wait_s, limit
        self._from_learners = from_learners
        self._client = uuid.uuid4().hex
        self._host: Any = None
        self._was_connected = False
        self._failures = 0
        self._outbox: list[Command] = []
        self._sent: dict[SessionId, set[str]] = {}  # pictures that the actor has
        self._source: list[tuple[str, torch.Tensor]] = []
        self._stats: dict[str, int] = {_RESTARTS: 0}

    def step(self) -> list[Generation]:
        """Send new commands and return the finished turns.

        Waits for at least one result, but not longer than ``wait_s``.

        Raises:
            EngineDiedError: If the actor fails repeatedly.
            RLlibLLMError: If the engine in the actor raises one.
        """
        if not self._requests:
            return []
        results = self._attempt(self._exchange)
        if results:
            self._failures = 0
        finished = []
        for number, done in results:
            # None: aborted while the actor was working on it.
            request = self._requests.get(number)
            if request is not None:
                tokens, logps = done.token_ids.tolist(), done.logps.tolist()
                versions = done.token_versions.tolist()
                for token, logp, version in zip(tokens, logps, versions, strict=True):
                    request.accept(token, logp, version)
                finished.append(self._finish(request, done.finish))
        return finished

    def update_weights(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Send new values unless another client has; see :class:`GenerationEngine`.

        The tensors are kept by reference and sent again to a restarted actor, so they
        must keep the values of this version until the next one.
        """
        is_older = version < self._version
        self._source = [(name, tensor.detach()) for name, tensor in named_tensors]
        self._version = version
        if self._host is not None:
            self._attempt(lambda host: self._send_weights(host, is_older))

    @property
    def shares_weights(self) -> bool:
        """True if the Learners send weights, of which clients learn the version."""
        return self._from_learners

    def set_weights_version(self, version: int) -> None:
        """Announce a version that the Learners have sent to the actor."""
        if not self._from_learners:
            super().set_weights_version(version)
        self._version = version

    def handle(self) -> ActorHandle:
        """Return the actor, with its engine started."""
        self.start()
        return self._host

    def start(self) -> None:
        """Start the actor and its engine, if they do not run yet."""
        self._attempt(lambda host: self._call(host, "start"))

    def sleep(self) -> None:
        """Make the engine in the actor release its memory, if it runs."""
        if self._host is not None:
            self._attempt(lambda host: self._call(host, "sleep"))

    def wake_up(self) -> None:
        """Make the engine in the actor allocate its memory again."""
        if self._host is not None:
            self._attempt(lambda host: self._call(host, "wake_up"))

    def stats(self) -> dict[str, int]:
        """Return the counters; see :meth:`GenerationEngine.stats`.

        The actor reports its work once, to the client that asks first, so that sums
        over clients are right. ``engine_restarts`` is counted in addition.
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
        self._outbox.append(self._submission(request))

    def _cancel(self, request: Request) -> None:
        self._outbox.append(Abort(request.request_id))

    def _submission(self, request: Request) -> Submit:
        """Return the command; it has the pixels that the actor lacks."""
        session = request.session
        sent = self._sent.setdefault(session.session_id, set())
        shown = {p.ref.digest: p.pixels for p in session.pictures}
        new = {name: pixels for name, pixels in shown.items() if name not in sent}
        sent.update(new)
        return Submit(
            session.session_id,
            request.request_id,
            np.array(session.history, np.int32),
            request.params,
            tuple(p.ref for p in session.pictures),
            new,
        )

    def _forget(self, session: Session) -> None:
        self._sent.pop(session.session_id, None)
        self._outbox.append(Close(session.session_id))

    def _exchange(self, host: ActorHandle) -> list[tuple[int, Generation]]:
        # Cleared before the call: the actor applies them even if the engine raises.
        commands, self._outbox = self._outbox, []
        return self._call(host, "exchange", self._client, commands, self._wait_s)

    def _drain(self, host: ActorHandle) -> dict[str, int]:
        if self._outbox and not self._requests:  # only closed conversations are left
            self._exchange(host)
        return self._call(host, "drain_stats")

    def _send_weights(self, host: ActorHandle, is_older: bool = False) -> None:
        checksum = _checksum(self._source)
        if self._call(host, "claim_weights", self._version, checksum, is_older):
            packed = ray.put(weights.pack(dict(self._source)))
            self._call(host, "set_weights", packed, self._version, checksum)

    def _call(self, host: ActorHandle, name: str, *arguments: object) -> Any:
        """Return the answer of the actor to a call, within the time limit."""
        return result_of(
            getattr(host, name).remote(*arguments),
            f"The engine's actor {self._options['name']!r} in {name}() with weights "
            f"version {self._version}",
            self._limit,
        )

    def _attempt(self, call: Callable[[Any], _Answer]) -> _Answer:
        """Make a remote call, with a new actor if the old one is lost.

        Errors of this package are raised unchanged. Any other exception counts as the
        death of the actor, because the engine's state is undefined after it.
        """
        while True:
            try:
                return call(self._connect())
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, RLlibLLMError):
                    raise error.cause from None
                self._discard_host(error)
            except (ray.exceptions.RayActorError, CallTimeoutError) as error:
                self._discard_host(error)

    def _connect(self) -> Any:
        """Return the actor, holding this client's weights."""
        if self._host is None:
            host = ray.remote(EngineHost).options(**self._options).remote(self._factory)
            try:
                is_new = self._call(host, "connect")
            except CallTimeoutError:
                ray.kill(host)  # otherwise its name leads to it again
                raise
            if is_new and self._was_connected:
                self._stats[_RESTARTS] += 1
            self._was_connected, self._host = True, host
            if self._source:
                self._send_weights(host)
        return self._host

    def _discard_host(self, error: Exception) -> None:
        """Drop an actor that failed and queue its unfinished turns again."""
        host, self._host = self._host, None
        self._failures += 1
        init_failed = getattr(error, "actor_init_failed", False)
        if self._from_learners and not init_failed:
            raise EngineDiedError(
                f"The engine's actor {self._options['name']!r} failed with weights "
                f"version {self._version}, which only the Learners can send again, so "
                "the run ends. tune.max_failures=1 or more restarts it from the newest "
                f"checkpoint. The error: {error}"
            ) from error
        if init_failed or self._failures > _MAX_FAILURES:
            raise EngineDiedError(
                f"The engine's actor {self._options['name']!r} failed "
                f"{self._failures} times without a result in between. If memory ran "
                "out, lower num_envs_per_env_runner or max_context_tokens, or set "
                f"engine_kwargs. Last error: {error}"
            ) from error
        if host is not None:
            ray.kill(host)
        logger.warning(
            "The engine's actor %r is lost (%s: %s); restarting it with %s unfinished "
            "turns.",
            self._options["name"],
            type(error).__name__,
            error,
            len(self._requests),
        )
        self._sent.clear()
        self._outbox = [self._submission(r) for r in self._requests.values()]


def _checksum(named_tensors: list[tuple[str, torch.Tensor]]) -> str:
    """Return a checksum of the weights, from a few values of each tensor."""
    values = weights.fingerprint(tensor for _, tensor in named_tensors)
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()
