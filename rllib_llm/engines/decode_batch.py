"""Batch of requests that decode together, with its per-step data precomputed.

A step of a small model takes about two milliseconds for 64 rows: a few microseconds of
Python per row and step would be a large share of it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rllib_llm.data.types import FinishReason
from rllib_llm.engines.drafts import DraftedStep, Drafter
from rllib_llm.engines.requests import Request
from rllib_llm.engines.token_sampling import BatchSampler

_LOOK_AHEAD = 16  # decoding steps; a batch often changes after fewer


class DecodeBatch:
    """Requests in the order of their rows.

    Args:
        requests: The requests in the order of their rows; the list is kept.
        device: Device of the logits.
        several: Whether their sessions may belong to several models.
        skipped: Tokens of a picture minus the positions that it takes.

    Attributes:
        num_rows: Number of rows up to the last one (B); some between may have no
            request.
        adapters: Index of each row's model; None with one model. int64 [B]
        behind: Columns minus positions of each row; None: they are equal. int64 [B]
    """

    def __init__(
        self,
        requests: list[Request],
        device: torch.device,
        several: bool = False,
        skipped: int = 0,
    ) -> None:
        """Compute everything that does not change from step to step."""
        self.requests = requests
        self._sessions = [r.session for r in requests]
        self._rows = np.array([s.row for s in self._sessions], np.int64)
        self.num_rows = int(self._rows.max(initial=-1)) + 1
        self.adapters: np.ndarray | None = None
        if several:
            self.adapters = self._by_row([s.adapter for s in self._sessions])
        self.behind: np.ndarray | None = None
        if skipped:  # all pictures of a history are before the tokens to compute
            self.behind = skipped * self._by_row(
                [len(s.pictures) for s in self._sessions]
            )
        self._sampler = BatchSampler([r.params for r in requests], device)
        # While no row samples one of these ids or reaches its limit, no turn can end,
        # and accept() skips the check of each row.
        self._stop_ids = frozenset().union(*(r.stop_ids for r in requests))
        self._has_strings = any(r.params.stop_strings for r in requests)
        self._steps_left = min((r.num_left for r in requests), default=0)
        self._uniforms = np.zeros((0, len(requests)))  # of the next steps [n, B]
        self._next = 0  # row of _uniforms for the next step
        # Last tokens and cached lengths, kept as arrays from one step to the next.
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.requests)

    def _by_row(self, values: list[int]) -> np.ndarray:
        """Return one value per row, 0 for rows of no request. int64 [B]"""
        by_row = np.zeros(self.num_rows, np.int64)
        by_row[self._rows] = values
        return by_row

    @property
    def has_gaps(self) -> bool:
        """True if rows of no request lie between the others."""
        return self.num_rows > len(self.requests)

    def feed_last(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each history's last token, which the next forward pass computes.

        Counts these tokens as cached.

        Returns:
            The tokens, int64 [B, 1], and the tokens cached before them, int64 [B].
        """
        if self._last is None:
            last = np.array([s.history[-1] for s in self._sessions])
            self._last = last, np.array([s.cached for s in self._sessions])
        for session in self._sessions:
            session.cached += 1
        return self._last[0][:, None], self._last[1]

    def drafted(self, drafter: Drafter, vocabulary: int) -> DraftedStep | None:
        """Return the next tokens by drafts, or None if every row has a single one.

        Args:
            drafter: Drafts them.
            vocabulary: Size of the vocabulary.
        """
        drafts = drafter.draft(self.requests, vocabulary)
        is_single = not any(drafts) and all(s.num_new == 1 for s in self._sessions)
        if is_single and not self.has_gaps:
            return None
        return DraftedStep(self.requests, drafts)

    def draw_drafted(
        self, step: DraftedStep, logits: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample the token after every computed one.

        Args:
            step: The computed tokens.
            logits: Logits after those where a token is wanted. [N, V]

        Returns:
            Tokens, int64 [N], and their log-probabilities, float32 [N].
        """
        return self._sampler.repeated(step.wanted[self._rows])(logits, step.uniforms)

    def accept_drafted(
        self,
        step: DraftedStep,
        tokens: np.ndarray,
        logps: np.ndarray,
        tokenizer: object,
    ) -> dict[Request, FinishReason]:
        """Accept tokens; see :meth:`DraftedStep.accept`."""
        ended = step.accept(tokens, logps, tokenizer)
        # What decoding token by token keeps from step to step is out of date.
        self._last, self._uniforms, self._next = None, self._uniforms[:0], 0
        self._steps_left = min(r.num_left for r in self.requests)
        return ended

    def draw(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Sample the next token of each request.

        Args:
            logits: Next-token logits. [B, V]

        Returns:
            Tokens, int64 [B], and their log-probabilities, float32 [B].
        """
        if self._next == len(self._uniforms):
            self._fill_uniforms()
        tokens, logps = self._sampler(logits, self._uniforms[self._next])
        self._next += 1
        if self._last is not None:
            self._last = tokens, self._last[1] + 1
        return tokens, logps

    def _fill_uniforms(self) -> None:
        """Stack the uniform numbers of the next steps."""
        count = max(1, min(self._steps_left, _LOOK_AHEAD))
        rows = [r.uniforms[r.num_sampled :][:count] for r in self.requests]
        self._uniforms, self._next = np.stack(rows, axis=1), 0

    def accept(
        self, tokens: list[int], logps: list[float], tokenizer: object
    ) -> dict[Request, FinishReason]:
        """Append sampled tokens to the histories.

        Args:
            tokens: One token per request. [B]
            logps: Their log-probabilities, in nats. [B]
            tokenizer: Decodes turns that have stop strings.

        Returns:
            The requests that end with these tokens, with their finish reasons.
        """
        for request, session, token, logp in zip(
            self.requests, self._sessions, tokens, logps, strict=True
        ):
            session.history.append(token)
            request.logps.append(logp)
        self._steps_left -= 1
        may_end = self.requests
        if self._steps_left > 0 and not self._has_strings:
            stops = self._stop_ids
            may_end = [self.requests[i] for i, t in enumerate(tokens) if t in stops]
        reasons = ((r, r.finish_reason(tokenizer)) for r in may_end)
        return {request: reason for request, reason in reasons if reason is not None}
