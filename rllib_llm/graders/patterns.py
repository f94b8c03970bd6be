"""Regular-expression search in model-written text, within a time limit.

Python's ``re`` backtracks: some expressions take exponential time on some texts, and a
search cannot be interrupted from its own process. It therefore runs in a worker
process, which can be killed. Texts between two tags are searched in linear time here.
"""

from __future__ import annotations

import json
import logging
import re

from rllib_llm.errors import RLlibLLMError
from rllib_llm.graders.line_worker import LineWorker

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
_BETWEEN_TAGS = re.compile(r"(</?\w+>)\(\.\*\?\)(</?\w+>)")
_warned: set[str] = set()


class PatternError(RLlibLLMError):
    """The worker failed twice; the text was not searched."""


# One process for all threads, started at the first search.
_WORKER = LineWorker("rllib_llm.graders.pattern_worker", PatternError)


def has_match(pattern: str, text: str) -> bool:
    """Return whether a text has a match; arguments and errors as :func:`matches`."""
    return bool(matches(pattern, text, most=1))


def matches(pattern: str, text: str, most: int | None = None) -> list[str]:
    """Return the matches of an expression, in order.

    Args:
        pattern: A valid regular expression, written by the author and never by a
            model; a dot in it matches line ends, too.
        text: The model's text.
        most: Maximum number of matches; None: all.

    Returns:
        The first group of each match, or the whole match without groups. Empty if the
        search takes longer than ``TIMEOUT_S``, which is logged once per pattern.

    Raises:
        PatternError: If the worker failed twice.
    """
    tags = _BETWEEN_TAGS.fullmatch(pattern)
    if tags is not None:
        return _between(tags[1], tags[2], text)[:most]
    reply = _WORKER.ask(json.dumps([pattern, text, most]), TIMEOUT_S)
    if reply is not None:
        return json.loads(reply)
    if pattern not in _warned:
        _warned.add(pattern)
        logger.warning(
            "Searching a text of %d characters for %r took longer than %g s and counts "
            "as no match. Rewrite the expression so that no two of its repetitions can "
            "match the same text.",
            len(text),
            pattern,
            TIMEOUT_S,
        )
    return []


def _between(opening: str, closing: str, text: str) -> list[str]:
    """Return the texts between two tags, as ``opening(.*?)closing`` does."""
    texts, start = [], 0
    while (begin := text.find(opening, start)) >= 0:
        begin += len(opening)
        end = text.find(closing, begin)
        if end < 0:
            break  # later opening tags are not closed, either
        texts.append(text[begin:end])
        start = end + len(closing)
    return texts
