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
        return drafts

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


class DraftedStep:
    """Tokens that a forward pass computes for requests with drafts.

    Args:
        requests: Running requests in the order of their rows, which begin at the first
            row of the cache.
        drafts: Draft of each.

    Attributes:
        token_ids: Tokens of each row's history that are not cached, then its draft,
            padded on the right. int64 [B, T]
        starts: Tokens cached before them. int64 [B]
        counts: Their number without padding; 0 for rows of no request. int64 [B]
        wanted: Tokens at their end after which one is sampled: the history's last one
            and the draft, N in total. int64 [B]
        uniforms: Uniform numbers of the tokens sampled after them. float64 [N]
    """

    def __init__(
        self, requests: Sequence[Request], drafts: Sequence[Sequence[int]]
    ) -> None:
        self._requests = requests
        num_rows = requests[-1].session.row + 1
        self.starts, self.counts, self.wanted = np.zeros((3, num_rows), np.int64)
        ids, uniforms = [], []
        for request, draft in zip(requests, drafts, strict=True):
            session, first, count = request.session, request.num_sampled, 1 + len(draft)
            fed = [*session.history[session.cached :], *draft]
            ids.append(fed)
            row = session.row
            self.starts[row], self.counts[row] = session.cached, len(fed)
            self.wanted[row] = count
            uniforms.append(request.uniforms[first : first + count])
        self.token_ids = np.zeros((num_rows, self.counts.max()), np.int64)
        is_real = np.arange(self.token_ids.shape[1]) < self.counts[:, None]
        self.token_ids[is_real] = [token for fed in ids for token in fed]
        self.uniforms = np.concatenate(uniforms)
        self._drafts = drafts

    def accept(
        self, tokens: np.ndarray, logps: np.ndarray, tokenizer: object
    ) -> dict[Request, FinishReason]:
        """Append the tokens up to the first one that its draft does not have.

        Args:
            tokens: Sampled token after each wanted one. int64 [N]
            logps: Their log-probabilities, in nats. float32 [N]
            tokenizer: Decodes turns that have stop strings.

        Returns:
            The requests that end with these tokens, with their finish reasons.
        """
        ended: dict[Request, FinishReason] = {}
        all_tokens, all_logps, end = tokens.tolist(), logps.tolist(), 0
        for request, draft in zip(self._requests, self._drafts, strict=True):
            first, end = end, end + 1 + len(draft)
            count = _num_right(draft, all_tokens[first:end]) + 1
            request.session.cached = len(request.session.history) - 1
            reason = request.accept_all(
                all_tokens[first : first + count],
                all_logps[first : first + count],
                tokenizer,
            )
            if reason is not None:
                ended[request] = reason
        return ended


def _num_right(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many of the first sampled tokens are those of the draft."""
    for count, drafted in enumerate(draft):
        if drafted != tokens[count]:
            return count
    return len(draft)
