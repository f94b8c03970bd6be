"""Sessions and requests of the engines in this process."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rllib_llm.data.types import FinishReason
from rllib_llm.engines.base import (
    ContextOverflowError,
    Generation,
    SamplingParams,
    SessionError,
    SessionId,
)
from rllib_llm.engines.token_sampling import draw_uniforms
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.placement import PlacedPicture

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """One conversation.

    Attributes:
        session_id: The caller's name for it.
        adapter: Index of the model that samples it, if several share an engine.
        history: All its tokens, including the sampled ones.
        cached: Number of tokens with keys and values in the cache; fewer than all at
            the start of a request.
        row: Its row of the cache, or -1.
        last_used: Counter value at its last request (no clock time).
        lost_cache: Whether keys and values that it had must be computed again.
        request: Its unfinished request.
        pictures: Its pictures, with places in the history, whose ids there are keys.
    """

    session_id: SessionId
    adapter: int = 0
    history: list[int] = dataclasses.field(default_factory=list)
    cached: int = 0
    row: int = -1
    last_used: int = 0
    lost_cache: bool = False
    request: Request | None = None
    pictures: list[PlacedPicture] = dataclasses.field(default_factory=list)

    @property
    def num_new(self) -> int:
        """Number of tokens that are not cached."""
        return len(self.history) - self.cached

    def drop_cache(self) -> None:
        """Mark all cached tokens as lost."""
        # Only for the metric `reprefills`: a session that had nothing cached loses
        # nothing.
        self.lost_cache |= self.cached > 0
        self.cached = 0


def check_submit(
    session: Session,
    length: int,
    params: SamplingParams,
    *,
    max_context_tokens: int,
    has_tokenizer: bool,
) -> None:
    """Check a submission before it changes the session.

    Args:
        session: The conversation.
        length: Length of its history after the submission, in tokens.
        params: Sampling parameters.
        max_context_tokens: Maximum tokens of a history, sampled ones included.
        has_tokenizer: Whether the engine can find stop strings.

    Raises:
        ConfigError: If stop strings are set without a tokenizer.
        ContextOverflowError: If no token could be sampled within the context.
        SessionError: If the session is busy, or its history would be empty.
    """
    name = session.session_id
    if session.request is not None:
        raise SessionError(
            f"Session {name!r} is busy with request {session.request.request_id}; a "
            "session has one request at a time. Finish or abort that request first."
        )
    if params.stop_strings and not has_tokenizer:
        raise ConfigError(
            f"stop_strings={params.stop_strings!r} need an engine with a tokenizer. "
            "Pass tokenizer=... to the engine, or use stop_token_ids."
        )
    if length == 0:
        raise SessionError(
            f"Session {name!r} has no tokens to continue; submit at least one."
        )
    if length + 1 > max_context_tokens:
        raise ContextOverflowError(
            f"Session {name!r} would have {length} tokens before sampling; "
            f"max_context_tokens ({max_context_tokens}) leaves room for "
            f"{max_context_tokens - 1}. End the episode or raise max_context_tokens."
        )


class Request:
    """One turn being sampled.

    Args:
        request_id: Unique within the engine.
        session: Its conversation, whose history ends with the prompt.
        params: Sampling parameters.
        room: Tokens that fit the context after the prompt, >= 1.
    """

    __slots__ = (
        "_limit",
        "_start_time",
        "_versions",
        "allowed",
        "is_counted",
        "logps",
        "params",
        "prompt_length",
        "request_id",
        "session",
        "stop_ids",
        "uniforms",
    )

    def __init__(
        self, request_id: int, session: Session, params: SamplingParams, room: int
    ) -> None:
        """Draw the random numbers of the whole turn."""
        # All at once: the tokens then do not depend on how the batch is stepped.
        self.request_id = request_id
        self.session = session
        self.params = params
        self.prompt_length = len(session.history)
        self.is_counted = False
        self._limit = min(params.max_new_tokens, room)
        self.uniforms = draw_uniforms(params.seed, self._limit)  # [limit]
        self.stop_ids = frozenset(params.stop_token_ids)
        self.logps: list[float] = []
        self.allowed: list[np.ndarray] = []  # one per token, with a nucleus mask
        self._versions: list[tuple[int, int]] = []
        self._start_time = time.perf_counter()

    @property
    def num_sampled(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.logps)

    @property
    def num_left(self) -> int:
        """Maximum number of tokens still to sample."""
        return self._limit - len(self.logps)

    def begin(self, version: int) -> None:
        """Record the version of the weights that sample the next token.

        Call it before the first token and after each change of the weights.
        """
        if self._versions and self._versions[-1][1] == version:
            return
        if self._versions and self._versions[-1][0] == self.num_sampled:
            self._versions.pop()  # it has sampled nothing
        self._versions.append((self.num_sampled, version))

    def accept(self, token: int, logp: float, version: int) -> None:
        """Append a sampled token to the history.

        Args:
            token: The token.
            logp: Its log-probability, in nats.
            version: Version of the weights that sampled it.
        """
        self.begin(version)
        self.session.history.append(token)
        self.logps.append(logp)

    def accept_all(
        self,
        tokens: list[int],
        logps: list[float],
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> FinishReason | None:
        """Append tokens that were computed together, up to the end of the turn.

        Args:
            tokens: Sampled tokens, at least one. [T]
            logps: Their log-probabilities, in nats. [T]
            tokenizer: Decodes the turn; only used with stop strings.

        Returns:
            The finish reason, or None if the turn continues.
        """
        session, may_end = self.session, self.params.stop_strings
        if not may_end and self.stop_ids.isdisjoint(tokens):
            session.history += tokens
            self.logps += logps
            session.cached += len(tokens)
            return FinishReason.LENGTH if self.num_left <= 0 else None
        for token, logp in zip(tokens, logps, strict=True):
            session.history.append(token)
            self.logps.append(logp)
            session.cached += 1
            reason = self.finish_reason(tokenizer)
            if reason is not None:
                return reason
        return None

    def finish_reason(
        self, tokenizer: PreTrainedTokenizerBase | None
    ) -> FinishReason | None:
        """Return the finish reason if the turn ends with the last accepted token.

        Args:
            tokenizer: Decodes the turn; only used with stop strings.

        Returns:
            The finish reason, or None if the turn continues.
        """
        if self.session.history[-1] in self.stop_ids:
            return FinishReason.STOP
        if self.params.stop_strings:
            # Decode the whole turn: one character may span several tokens.
            turn = self.session.history[self.prompt_length :]
            assert tokenizer is not None  # check_submit() requires it
            text = tokenizer.decode(turn, skip_special_tokens=False)
            if any(stop in text for stop in self.params.stop_strings):
                return FinishReason.STOP
        return FinishReason.LENGTH if self.num_left <= 0 else None

    def result(self, reason: FinishReason, now: float) -> Generation:
        """Return the finished turn.

        Args:
            reason: Its finish reason.
            now: The current time, in seconds of ``time.perf_counter``.
        """
        return Generation(
            request_id=self.request_id,
            session_id=self.session.session_id,
            token_ids=np.array(self.session.history[self.prompt_length :], np.int32),
            logps=np.array(self.logps, np.float32),
            allowed=np.stack(self.allowed) if self.allowed else None,
            finish=reason,
            weights_version=self._versions[0][1],
            version_changes=tuple(self._versions[1:]),
            seconds=now - self._start_time,
        )


def feed(
    sessions: Sequence[Session], counts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the next tokens of histories, and count them as cached.

    Args:
        sessions: The conversations. [B]
        counts: Number of tokens of each; the largest is T. [B]

    Returns:
        The tokens, padded on the right, int64 [B, T], and the tokens cached before
        them, int64 [B].
    """
    starts = np.array([s.cached for s in sessions])
    token_ids = np.zeros((len(sessions), max(counts)), np.int64)
    for row, (session, count) in enumerate(zip(sessions, counts, strict=True)):
        stop = session.cached + count
        token_ids[row, :count] = session.history[session.cached : stop]
        session.cached = stop
    return token_ids, starts


def common_prefix(first: list[int], second: list[int]) -> int:
    """Return the length of the common prefix of two histories."""
    low, high = 0, min(len(first), len(second))
    # A binary search: comparing slices is much faster than a loop over tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
