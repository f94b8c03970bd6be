"""Speculative decoding with drafts from earlier turns.

Turns of agents repeat each other: call syntax, field names, tags. A table of which
token followed the same few tokens in earlier turns drafts the next ones, and one
forward pass computes the logits after all of them. The uniform number of every token is
known beforehand, so the token at each place follows from the logits there, and a draft
is accepted as far as it has these tokens. Thus not only the distribution is that of
decoding token by token (as in Leviathan et al. 2023, arXiv:2211.17192), but the tokens
are, up to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from rllib_llm.data.types import FinishReason
from rllib_llm.engines.requests import Request

_CONTEXTS = 4, 2  # tokens before an entry; the second if there is none for the first
_MAX_ENTRIES = 2**17  # about 200 bytes each; beyond, the table starts anew
_ALL_TURNS, _EVERY = 128, 4  # learn from the first turns, then from one in four
_RATE = 0.2  # weight of the newest observation
# Share of a token that was observed once: while drafts are right at least so often, and
# while they are not. Rejected tokens cost most where a model is large.
_TRUSTED_FROM, _FIRST_SHARES = 0.85, (0.7, 0.5)
_WINDOW = 128  # drafted tokens of the running mean of right ones
_REPLACED_BELOW = 0.3
_LEAST_LIKELY = 0.6
_LEAST_FULL = 0.7  # share of a pass that is not padding
_MAX_LOGITS = 2**25  # entries of a pass's logits


class _Entry:
    """Token that followed a context, and how often it did of late."""

    __slots__ = ("share", "token")

    def __init__(self, token: int, share: float) -> None:
        self.token, self.share = token, share

    def observe(self, token: int) -> None:
        """Move the share towards 1 if the token is the expected one, else towards 0."""
        if token == self.token:
            self.share += _RATE * (1.0 - self.share)
            return
        self.share -= _RATE * self.share
        if self.share < _REPLACED_BELOW:
            self.token, self.share = token, _FIRST_SHARES[1]


_Context: TypeAlias = tuple[int, ...]
_Table: TypeAlias = dict[_Context, _Entry]


class Drafter:
    """Drafts the next tokens of turns by those of earlier turns.

    Args:
        length: Maximum tokens of a draft, >= 1.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        # By adapter, since policies that share an engine write different things.
        self._tables: dict[int, _Table] = defaultdict(dict)
        self._num_turns = 0
        self._right = _TRUSTED_FROM  # running mean of the accepted share

    def count(self, drafted: int, accepted: int) -> None:
        """Count the tokens of a pass that were drafted, and those that were right."""
        weight = drafted / (drafted + _WINDOW)
        self._right += weight * (accepted / drafted - self._right)

    def observe(self, request: Request) -> None:
        """Learn from a finished turn which tokens followed which."""
        self._num_turns += 1
        if self._num_turns > _ALL_TURNS and self._num_turns % _EVERY:
            return
        history, start = request.session.history, request.prompt_length
        entries = self._tables[request.session.adapter]
        if len(entries) > _MAX_ENTRIES:
            entries.clear()
        first_share = _FIRST_SHARES[self._right < _TRUSTED_FROM]
        for place in range(max(start, _CONTEXTS[0]), len(history)):
            token = history[place]
            for size in _CONTEXTS:
                context = tuple(history[place - size : place])
                entry = entries.get(context)
                if entry is None:
                    entries[context] = _Entry(token, first_share)
                else:
                    entry.observe(token)

    def draft(self, requests: Sequence[Request], vocabulary: int) -> list[list[int]]:
        """Return likely next tokens of each request; none if none is likely enough.

        Args:
            requests: Running requests. [B]
            vocabulary: Size of the vocabulary, since the logits of a pass are limited.
        """
        most = min(self._length, _MAX_LOGITS // (len(requests) * vocabulary) - 1)
        by_place: dict[tuple[int, _Context], list[int]] = {}
        drafts = []
        for request in requests:
            session = request.session
            place = session.adapter, tuple(session.history[-_CONTEXTS[0] :])
            if place not in by_place:  # many requests are at the same place
                by_place[place] = self._continuation(*place, most)
            drafts.append(by_place[place][: request.num_left - 1])
        width = _width(np.array([len(draft) for draft in drafts]))
        return [draft[:width] for draft in drafts]

    def _continuation(self, adapter: int, context: _Context, most: int) -> list[int]:
        """Return likely tokens after a context, ``most`` at most."""
        find, shorter = self._tables[adapter].get, _CONTEXTS[1]
        tokens: list[int] = []
        likely = 1.0
        while len(tokens) < most:
            entry = find(context) or find(context[-shorter:])
            if entry is None:
                break
            likely *= entry.share
            if likely < _LEAST_LIKELY:
                break
            tokens.append(entry.token)
            context = (*context[1:], entry.token)
        return tokens


def _width(lengths: np.ndarray) -> int:
    """Return the draft length beyond which too much of a pass would be padding.

    Args:
        lengths: Length of each draft. int64 [B]
    """
    widths = np.arange(1, lengths.max(initial=0) + 1)
    computed = (1 + np.minimum(lengths[:, None], widths)).sum(0)
    is_full = computed >= _LEAST_FULL * len(lengths) * (1 + widths)
    return int(widths[is_full].max(initial=0))


class DraftedStep:
    """Tokens that a forward pass computes for requests with drafts.

    Args:
        requests: Running requests. [B]
        drafts: Draft of each, without the last sampled token. [B]

    Attributes:
        token_ids: The last sampled token and the draft, padded on the right.
            int64 [B, T]
        starts: Tokens cached before them. int64 [B]
        counts: Their number without padding, N in total. int64 [B]
        uniforms: Uniform numbers of the tokens that follow each. float64 [N]
    """

    def __init__(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]]
    ) -> None:
        self._requests = requests
        sessions = [r.session for r in requests]
        self.starts = np.array([s.cached for s in sessions])
        self.counts = np.array([1 + len(draft) for draft in drafts])
        self.token_ids = np.zeros((len(requests), self.counts.max()), np.int64)
        uniforms = []
        for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            first, count = request.num_sampled, 1 + len(draft)
            self.token_ids[row, 0] = request.session.history[-1]
            self.token_ids[row, 1:count] = draft
            uniforms.append(request.uniforms[first : first + count])
        self.uniforms = np.concatenate(uniforms)

    def accept(
        self, tokens: np.ndarray, logps: np.ndarray, tokenizer: object
    ) -> dict[Request, FinishReason]:
        """Append the tokens up to the first one that its draft does not have.

        Args:
            tokens: Sampled token after each computed one. int64 [N]
            logps: Their log-probabilities, in nats. float32 [N]
            tokenizer: Decodes turns that have stop strings.

        Returns:
            The requests that end with these tokens, with their finish reasons.
        """
        ended: dict[Request, FinishReason] = {}
        ends = np.cumsum(self.counts)
        rows = zip(self._requests, self._num_accepted(tokens), ends, strict=True)
        all_tokens, all_logps = tokens.tolist(), logps.tolist()
        for (request, count, end), size in zip(rows, self.counts, strict=True):
            first = end - size
            reason = request.accept_all(
                all_tokens[first : first + count],
                all_logps[first : first + count],
                tokenizer,
            )
            if reason is not None:
                ended[request] = reason
        return ended

    def _num_accepted(self, tokens: np.ndarray) -> list[int]:
        """Return how many sampled tokens of each row follow accepted ones. [B]"""
        width = self.token_ids.shape[1]
        sampled = np.full(self.token_ids.shape, -1)
        sampled[np.arange(width) < self.counts[:, None]] = tokens
        is_right = sampled[:, :-1] == self.token_ids[:, 1:]
        is_right &= np.arange(1, width) < self.counts[:, None]
        return (1 + np.cumprod(is_right, axis=1).sum(1)).tolist()
