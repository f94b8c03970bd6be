"""Conversations of engines that are sent a whole history with every request.

vLLM finds what it has computed before by the tokens themselves, and an engine that
died has forgotten everything; so the history of a conversation is kept on this side.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence

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


class HistoryEngine(GenerationEngine):
    """Sessions and requests; subclasses sample.

    Args:
        max_context_tokens: Most tokens of a history, sampled ones included, >= 2.
        has_tokenizer: Whether stop strings can be found.

    Raises:
        ConfigError: If the context is too short.
    """

    def __init__(self, *, max_context_tokens: int, has_tokenizer: bool) -> None:
        """Start without sessions."""
        if max_context_tokens < 2:
            raise ConfigError(
                f"max_context_tokens ({max_context_tokens}) must be >= 2."
            )
        self._max_context = max_context_tokens
        self._has_tokenizer = has_tokenizer
        self._sessions: dict[SessionId, Session] = {}
        self._requests: dict[int, Request] = {}
        self._next_id = 0
        self._version = 0

    @abc.abstractmethod
    def _start(self, request: Request) -> None:
        """Begin to continue ``request.session.history``."""

    @abc.abstractmethod
    def _cancel(self, request: Request) -> None:
        """Stop working on a request that is no longer in ``_requests``."""

    def _forget(self, session: Session) -> None:
        """Drop what is held for a closed session; nothing by default."""

    @property
    def shares_weights(self) -> bool:
        """These engines hold a copy: :meth:`update_weights` brings new values."""
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
            raise SessionError(f"Session {session_id!r} is already open; close it.")
        self._sessions[session_id] = Session(session_id)

    def submit(
        self,
        session_id: SessionId,
        new_token_ids: Sequence[int] | np.ndarray,
        params: SamplingParams,
        *,
        extends: bool = True,
    ) -> int:
        """Ask for a continuation; see :meth:`GenerationEngine.submit`."""
        session = self._get_session(session_id)
        new = np.asarray(new_token_ids, dtype=np.int64).ravel().tolist()
        history = session.history + new if extends else new
        check_submit(
            session,
            len(history),
            params,
            max_context_tokens=self._max_context,
            has_tokenizer=self._has_tokenizer,
        )
        session.history = history
        room = self._max_context - len(history)
        request = Request(self._next_id, session, params, room)
        self._next_id += 1
        self._start(request)
        session.request = request
        self._requests[request.request_id] = request
        return request.request_id

    def abort(self, request_id: int) -> None:
        """Forget a request; see :meth:`GenerationEngine.abort`."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        del request.session.history[request.prompt_length :]
        request.session.request = None
        self._cancel(request)

    def close(self, session_id: SessionId) -> None:
        """Forget a session; see :meth:`GenerationEngine.close`."""
        session = self._get_session(session_id)
        if session.request is not None:
            self.abort(session.request.request_id)
        del self._sessions[session_id]
        self._forget(session)

    def set_weights_version(self, version: int) -> None:
        """Refuse: nothing is shared with the caller.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"{type(self).__name__} holds its own copy of the weights, so version "
            f"{version} cannot be announced. Give it the values: update_weights()."
        )

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
