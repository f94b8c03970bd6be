"""Computing a prompt once for the sessions that begin alike.

Rollouts of one group start from the same prompt, and prompts of all groups often from
the same instructions. Keys and values of a token depend only on the tokens before it,
so those of a common beginning are copied from row to row.
"""

from __future__ import annotations

import bisect

from rllib_llm.engines.requests import Request, Session, common_prefix
from rllib_llm.engines.slot_table import SlotTable

MIN_SHARED = 8
"""Shortest beginning that is shared; below, computing it costs no more."""


def share_prefixes(
    todo: list[Request], table: SlotTable, *, may_wait: bool
) -> tuple[list[Request], list[Request], int]:
    """Copy what the cache already holds of new sessions' beginnings.

    Args:
        todo: Requests whose sessions have rows.
        table: Who holds which row.
        may_wait: Whether a request may be held back because it shares more with another
            one of ``todo`` than with anything in the cache.

    Returns:
        The requests to prefill now, those held back until they are (call again with
        them), and the number of tokens copied.
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
    """Decide which rows are copied for whom, and who waits.

    Args:
        fresh: Requests of sessions without anything in the cache.
        owners: Sessions with rows.
        copies: Receives sessions by row and number of tokens to copy.
        later: Receives requests to hold back.
        may_wait: See :func:`share_prefixes`.
    """
    cached = [s for s in owners if s.cached >= MIN_SHARED]
    known = sorted((s.history[: s.cached], s.row) for s in cached)
    previous: list[int] = []
    # In lexicographic order the longest common beginning is that with a neighbour.
    for request in sorted(fresh, key=lambda r: r.session.history):
        session = request.session
        history = session.history
        length, row = _longest_beginning(history, known)
        coming = common_prefix(previous, history) if may_wait else 0
        previous = history
        if coming - length >= MIN_SHARED:
            later.add(request)
        elif length >= MIN_SHARED:
            # The last token is always fed: its logits are those to sample from.
            session.cached = min(length, len(history) - 1)
            copies.setdefault((row, session.cached), []).append(session)


def _is_fresh(request: Request) -> bool:
    session = request.session
    return session.cached == 0 and len(session.history) > MIN_SHARED


def _longest_beginning(
    history: list[int], known: list[tuple[list[int], int]]
) -> tuple[int, int]:
    """Return how many tokens some row shares with a history, and which row."""
    place = bisect.bisect(known, (history, -1))
    neighbours = known[max(place - 1, 0) : place + 1]
    shared = [(common_prefix(tokens, history), row) for tokens, row in neighbours]
    return max(shared, default=(0, -1))
