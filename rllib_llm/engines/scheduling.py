"""When the torch engine prefills, and which requests together."""

from __future__ import annotations

from rllib_llm.engines.requests import Request

# Prefill when this share of the work is waiting, or after this many decoding steps:
# small prefill batches are inefficient, but nobody should wait for long.
_PREFILL_SHARE = 0.25
_PREFILL_PATIENCE = 8
_PREFILL_TOKENS = 8192  # most tokens of one forward, padding included
_PREFILL_SCORES = 2**25  # most entries of one attention mask

PREFILL_CHUNK = 2048
"""Most new tokens of one row in a forward; longer prompts take several."""


def is_prefill_due(
    num_waiting: int, num_running: int, max_slots: int, steps_waited: int
) -> bool:
    """Say whether waiting requests go before the next decoding step.

    Args:
        num_waiting: Requests whose prompt is not computed yet.
        num_running: Requests that could decode.
        max_slots: Most requests that run at once.
        steps_waited: Decoding steps since requests began to wait.
    """
    startable = min(num_waiting, max_slots - num_running)
    if startable == 0:
        return False
    share = startable / (startable + num_running)
    return share >= _PREFILL_SHARE or steps_waited >= _PREFILL_PATIENCE


def split_group(todo: list[Request]) -> tuple[list[Request], list[Request]]:
    """Split off requests to prefill together so that little is wasted on padding.

    Args:
        todo: Requests from the most to the fewest new tokens, at least one.

    Returns:
        The first group and the rest.
    """
    width = min(todo[0].session.num_new, PREFILL_CHUNK)
    columns = 0
    for size, request in enumerate(todo):
        session = request.session
        columns = max(columns, session.cached + min(session.num_new, width))
        is_similar = width <= 32 or 2 * session.num_new >= width
        tokens = (size + 1) * width
        is_small = tokens <= _PREFILL_TOKENS and tokens * columns <= _PREFILL_SCORES
        if size and not (is_similar and is_small):
            return todo[:size], todo[size:]
    return todo, []
