"""Scheduling of the torch engine's prefill steps."""

from __future__ import annotations

from rllib_llm.engines.requests import Request, Session

# Prefill when this share of the requests is waiting, or after this many decoding steps:
# small prefill batches are inefficient, but no request should wait for long.
_PREFILL_SHARE = 0.25
_PREFILL_PATIENCE = 8
_PREFILL_TOKENS = 8192  # maximum tokens of one forward, with padding
_PREFILL_SCORES = 2**25  # maximum entries of one attention mask
_JOINED_TOKENS = 32  # maximum new tokens of a turn that begins in a decoding pass

PREFILL_CHUNK = 2048
"""Maximum new tokens of one row in a forward; longer prompts take several forwards."""


def is_prefill_due(
    num_waiting: int, num_running: int, max_slots: int, steps_waited: int
) -> bool:
    """Return whether the next step prefills instead of decoding.

    Args:
        num_waiting: Number of requests whose prompt is not computed.
        num_running: Number of requests that could decode.
        max_slots: Maximum number of requests that run at once.
        steps_waited: Decoding steps since the last prefill with requests waiting.
    """
    startable = min(num_waiting, max_slots - num_running)
    if startable == 0:
        return False
    share = startable / (startable + num_running)
    return share >= _PREFILL_SHARE or steps_waited >= _PREFILL_PATIENCE


def may_join(session: Session) -> bool:
    """Return whether a waiting turn may begin beside those that decode.

    It has few new tokens, and none of a picture, whose features a prefill places.
    """
    if session.row < 0 or session.cached == 0 or session.num_new > _JOINED_TOKENS:
        return False
    return min(session.history[session.cached :]) >= 0  # negative: keys of pictures


def split_group(todo: list[Request]) -> tuple[list[Request], list[Request]]:
    """Split off a group of requests to prefill together with little padding.

    Args:
        todo: Requests in descending order of their new tokens, at least one.

    Returns:
        The first group and the rest.
    """
    width = min(todo[0].session.num_new, PREFILL_CHUNK)
    columns = 0
    for size, request in enumerate(todo):
        session = request.session
        columns = max(columns, session.cached + min(session.num_new, width))
        # At most half of a row is padding; short prompts are cheap to pad.
        is_similar = width <= 32 or 2 * session.num_new >= width
        tokens = (size + 1) * width
        is_small = tokens <= _PREFILL_TOKENS and tokens * columns <= _PREFILL_SCORES
        if size and not (is_similar and is_small):
            return todo[:size], todo[size:]
    return todo, []
