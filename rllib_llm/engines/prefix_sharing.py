"""Prefix sharing: copies of cached keys and values between sessions.

Rollouts of one group start with the same prompt, and the prompts of all groups often
with the same instructions. Keys and values of a token depend only on the tokens before
it, so those of a common prefix are computed once and copied from row to row.
"""

from __future__ import annotations

import bisect

from rllib_llm.engines.requests import Request, Session, common_prefix
from rllib_llm.engines.slot_table import SlotTable

MIN_SHARED = 8
"""Minimum prefix to share, in tokens; shorter ones are as fast to compute."""


def share_prefixes(
    todo: list[Request], table: SlotTable, *, may_wait: bool
) -> tuple[list[Request], list[Request], int]:
    """Copy prefixes of new sessions from other rows of the cache.

    Args:
        todo: Requests whose sessions have rows.
        table: The rows and their sessions.
        may_wait: Whether to postpone a request that shares a longer prefix with another
            request of ``todo`` than with any row of the cache.

    Returns:
        The requests to prefill now, the postponed requests (call again with these after
        the prefill), and the number of tokens copied.
    """
    copies: dict[tuple[int, int], list[Session]] = {}
    later: set[Request] = set()
    # Keys and values of the same tokens differ between adapters.
    for adapter in {r.session.adapter for r in todo if _is_fresh(r)}:
        fresh = [r for r in todo if _is_fresh(r) and r.session.adapter == adapter]
        owners = [s for s in table.owners if s is not None and s.adapter == adapter]
        _plan(fresh, owners, copies, later, may_wait=may_wait)
    for (row, length), sessions in copies.items():
        table.cache.copy_prefix(row, [s.row for s in sessions], length)
    now = [r for r in todo if r not in later]
    num_copied = sum(length * len(sessions) for (_, length), sessions in copies.items())
    return now, [r for r in todo if r in later], num_copied


def _plan(
    fresh: list[Request],
    owners: list[Session],
    copies: dict[tuple[int, int], list[Session]],
    later: set[Request],
    *,
    may_wait: bool,
) -> None:
    """Plan the copies from row to row and the postponed requests.

    Args:
        fresh: Requests of sessions without cached tokens.
        owners: Sessions with rows.
        copies: Receives sessions by row and number of tokens to copy.
        later: Receives the postponed requests.
        may_wait: See :func:`share_prefixes`.
    """
    cached = [s for s in owners if s.cached >= MIN_SHARED]
    prefixes = sorted((s.history[: s.cached], s.row) for s in cached)
    previous: list[int] = []
    # In lexicographic order the longest common prefix is with a neighbour.
    for request in sorted(fresh, key=lambda r: r.session.history):
        session = request.session
        history = session.history
        length, row = _longest_prefix(history, prefixes)
        upcoming = common_prefix(previous, history) if may_wait else 0
        previous = history
        if upcoming - length >= MIN_SHARED:
            later.add(request)
        elif length >= MIN_SHARED:
            # The last token is always computed: sampling needs its logits.
            session.cached = min(length, len(history) - 1)
            copies.setdefault((row, session.cached), []).append(session)


def _is_fresh(request: Request) -> bool:
    session = request.session
    return session.cached == 0 and len(session.history) > MIN_SHARED


def _longest_prefix(
    history: list[int], prefixes: list[tuple[list[int], int]]
) -> tuple[int, int]:
    """Return the length of the longest cached prefix of a history, and its row.

    Args:
        history: The tokens.
        prefixes: Cached tokens and row of each session, sorted.
    """
    place = bisect.bisect(prefixes, (history, -1))
    neighbours = prefixes[max(place - 1, 0) : place + 1]
    shared = [(common_prefix(tokens, history), row) for tokens, row in neighbours]
    return max(shared, default=(0, -1))
