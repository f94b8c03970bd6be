"""What the torch engine remembers of a conversation and of a request."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from rllib_llm.engines.base import Generation, SamplingParams, SessionId
from rllib_llm.engines.sampling import draw_uniforms
from rllib_llm.types import FinishReason


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """One conversation.

    Attributes:
        session_id: The caller's name for it.
        history: All its tokens, sampled ones included.
        cached: How many of them have keys and values in the cache; less than all
            whenever a request starts.
        row: Its row of the cache, or -1.
        last_used: When it last had a request (a counter, not a clock).
        lost_cache: Whether keys and values it had must be computed again.
        request: Its unfinished request.
    """

    session_id: SessionId
    history: list[int] = dataclasses.field(default_factory=list)
    cached: int = 0
    row: int = -1
    last_used: int = 0
    lost_cache: bool = False
    request: Request | None = None

    @property
    def num_new(self) -> int:
        """Number of tokens the model has yet to see."""
        return len(self.history) - self.cached

    def drop_cache(self) -> None:
        """Forget that anything is cached."""
        self.lost_cache |= self.cached > 0
        self.cached = 0


class Request:
    """One turn being sampled.

    Args:
        request_id: Unique within the engine.
        session: Its conversation, whose history ends with the prompt.
        params: How to sample.
        room: Tokens that fit the context after the prompt, >= 1.
    """

    __slots__ = (
        "_limit",
        "_logps",
        "_start_time",
        "_stop_ids",
        "_version",
        "is_counted",
        "params",
        "prompt_length",
        "request_id",
        "session",
        "uniforms",
    )

    def __init__(
        self, request_id: int, session: Session, params: SamplingParams, room: int
    ) -> None:
        """Draw the random numbers of the whole turn."""
        self.request_id = request_id
        self.session = session
        self.params = params
        self.prompt_length = len(session.history)
        self.is_counted = False
        self._limit = min(params.max_new_tokens, room)
        self.uniforms = draw_uniforms(params.seed, self._limit).tolist()
        self._stop_ids = frozenset(params.stop_token_ids)
        self._logps: list[float] = []
        self._version = 0
        self._start_time = time.perf_counter()

    @property
    def num_sampled(self) -> int:
        """Number of tokens sampled so far."""
        return len(self._logps)

    def accept(self, token: int, logp: float, version: int) -> None:
        """Append a sampled token to the history.

        Args:
            token: The token.
            logp: Its log-probability, in nats.
            version: Version of the weights that sampled it.
        """
        if not self._logps:
            self._version = version
        self.session.history.append(token)
        self._logps.append(logp)

    def finish_reason(self, tokenizer: Any) -> FinishReason | None:
        """Say whether the turn ends with the last accepted token.

        Args:
            tokenizer: Decodes the turn; only used if there are stop strings.

        Returns:
            Why it ends, or None to go on.
        """
        if self.session.history[-1] in self._stop_ids:
            return FinishReason.STOP
        if self.params.stop_strings:
            # The whole turn: one character may be spread over several tokens.
            turn = self.session.history[self.prompt_length :]
            text = tokenizer.decode(turn, skip_special_tokens=False)
            if any(stop in text for stop in self.params.stop_strings):
                return FinishReason.STOP
        if len(self._logps) >= self._limit:
            return FinishReason.LENGTH
        return None

    def result(self, reason: FinishReason, now: float) -> Generation:
        """Return the finished turn.

        Args:
            reason: Why it ended.
            now: The time, in seconds of ``time.perf_counter``.
        """
        return Generation(
            request_id=self.request_id,
            session_id=self.session.session_id,
            token_ids=np.array(self.session.history[self.prompt_length :], np.int32),
            logps=np.array(self._logps, np.float32),
            finish=reason,
            weights_version=self._version,
            seconds=now - self._start_time,
        )


def common_prefix(first: list[int], second: list[int]) -> int:
    """Return the number of leading tokens two histories share."""
    shorter = min(len(first), len(second))
    for index in range(shorter):
        if first[index] != second[index]:
            return index
    return shorter
