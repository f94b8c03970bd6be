"""Base class of engines whose requests carry the whole history.

vLLM finds cached prefixes by their tokens, and a restarted engine has no state.
Therefore the client keeps the history of each conversation.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rllib_llm.data.types import FinishReason
from rllib_llm.engines.base import (
    Generation,
    GenerationEngine,
    SamplingParams,
    SessionError,
    SessionId,
)
from rllib_llm.engines.requests import Request, Session, check_submit
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.pictures.features import fit
from rllib_llm.pictures.placement import PlacedPicture, moved

if TYPE_CHECKING:
    from rllib_llm.pictures.spec import ImageSpec


class HistoryEngine(GenerationEngine):
    """Keeps sessions and requests; subclasses sample.

    Args:
        max_context_tokens: Maximum tokens of a history, sampled ones included, >= 2.
        has_tokenizer: Whether stop strings are supported.
        pictures: Picture inputs of a vision-language model; None: it reads text alone.

    Raises:
        ConfigError: If ``max_context_tokens`` is below 2.
    """

    def __init__(
        self,
        *,
        max_context_tokens: int,
        has_tokenizer: bool,
        pictures: ImageSpec | None = None,
    ) -> None:
        """Start without sessions."""
        if max_context_tokens < 2:
            raise ConfigError(
                f"max_context_tokens ({max_context_tokens}) must be >= 2. Raise it."
            )
        self._max_context = max_context_tokens
        self._has_tokenizer = has_tokenizer
        self._spec = pictures
        self._sessions: dict[SessionId, Session] = {}
        self._requests: dict[int, Request] = {}
        self._next_id = 0
        self._version = 0

    @abc.abstractmethod
    def _start(self, request: Request) -> None:
        """Submit history and pictures of ``request.session`` to the backend."""

    @abc.abstractmethod
    def _cancel(self, request: Request) -> None:
        """Cancel a request at the backend; it is no longer in ``_requests``."""

    def _forget(self, session: Session) -> None:
        """Delete a closed session's state at the backend; no effect by default."""

    @property
    def shares_weights(self) -> bool:
        """Always False: the engine holds a copy, which :meth:`update_weights` sets."""
        return False

    @property
    def num_unfinished(self) -> int:
        """Number of requests submitted and neither finished nor aborted."""
        return len(self._requests)

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample the next token; 0 at the start."""
        return self._version

    def open(self, session_id: SessionId) -> None:
        """Start a conversation; see :meth:`GenerationEngine.open`."""
        if session_id in self._sessions:
            raise SessionError(
                f"Session {session_id!r} is already open. Close it first."
            )
        self._sessions[session_id] = Session(session_id)

    def submit(
        self,
        session_id: SessionId,
        new_token_ids: Sequence[int] | np.ndarray,
        params: SamplingParams,
        *,
        extends: bool = True,
        pictures: Sequence[PlacedPicture] = (),
    ) -> int:
        """Request a continuation; see :meth:`GenerationEngine.submit`.

        Args:
            session_id: An open session without an unfinished request.
            new_token_ids: Tokens since the last sampled one. [T]
            params: Sampling parameters.
            extends: False replaces the whole history, with its pictures.
            pictures: Pictures among the new tokens.

        Raises:
            ConfigError: If there are pictures and the model reads text alone.
        """
        session = self._get_session(session_id)
        new = np.asarray(new_token_ids, dtype=np.int64).ravel().tolist()
        # A new list: if the check or the backend fails, the session is unchanged.
        history = session.history + new if extends else new
        check_submit(
            session,
            len(history),
            params,
            max_context_tokens=self._max_context,
            has_tokenizer=self._has_tokenizer,
        )
        shown = self._fitted(pictures)
        if extends:
            shown = [*session.pictures, *moved(shown, len(session.history))]
        session.history, session.pictures = history, shown
        room = self._max_context - len(history)
        request = Request(self._next_id, session, params, room)
        self._next_id += 1
        # If the backend refuses the request, the session must stay free.
        self._start(request)
        session.request = request
        self._requests[request.request_id] = request
        return request.request_id

    def abort(self, request_id: int) -> None:
        """Cancel a request; see :meth:`GenerationEngine.abort`."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        # A retried turn must start from the same tokens.
        del request.session.history[request.prompt_length :]
        request.session.request = None
        self._cancel(request)

    def close(self, session_id: SessionId) -> None:
        """Delete a session; see :meth:`GenerationEngine.close`."""
        session = self._get_session(session_id)
        if session.request is not None:
            self.abort(session.request.request_id)
        del self._sessions[session_id]
        self._forget(session)

    def set_weights_version(self, version: int) -> None:
        """Raise an error: the engine holds a copy of the weights.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"{type(self).__name__} holds its own copy of the weights, so version "
            f"{version} cannot be set without their values. Call update_weights()."
        )

    def _fitted(self, pictures: Sequence[PlacedPicture]) -> list[PlacedPicture]:
        """Return pictures scaled as the Learner scales them."""
        if not pictures:
            return []
        if self._spec is None:
            raise ConfigError(
                f"{len(pictures)} pictures were submitted to an engine of a model that "
                "reads text alone. Use a vision-language model (docs/pictures.md)."
            )
        size = self._spec.size
        return [PlacedPicture(p.ref, fit(p.pixels, size)) for p in pictures]

    def _finish(self, request: Request, reason: FinishReason) -> Generation:
        del self._requests[request.request_id]
        request.session.request = None
        return request.result(reason, time.perf_counter())

    def _get_session(self, session_id: SessionId) -> Session:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionError(
                f"Session {session_id!r} is not open; call open() first."
            ) from None
