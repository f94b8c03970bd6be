"""Search of one of several words in a completion."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from rllib_llm.envs.parsing import last_match


def find_word(text: str, words: Sequence[str]) -> int | None:
    """Return the index of the word that ``text`` mentions last, or None.

    Words match as a whole only, longer ones first (``"1-12"`` does not match
    ``"1-1"``). Case is ignored unless two words differ in nothing else.

    Args:
        text: The completion.
        words: Distinct non-empty strings.
    """
    pattern, order = _pattern(tuple(words))
    match = last_match(pattern, text)
    if match is None or match.lastindex is None:
        return None
    return order[match.lastindex - 1]


@functools.lru_cache(maxsize=4096)
def _pattern(words: tuple[str, ...]) -> tuple[re.Pattern[str], list[int]]:
    order = sorted(range(len(words)), key=lambda i: -len(words[i]))
    choices = "|".join(f"({re.escape(words[i])})" for i in order)
    ambiguous = len({word.lower() for word in words}) < len(words)
    flags = re.RegexFlag(0) if ambiguous else re.IGNORECASE
    return re.compile(rf"(?<!\w)(?:{choices})(?!\w)", flags), order


def list_words(words: Sequence[str], most: int = 16) -> str:
    """Return e.g. ``"pass or bet"`` or ``"1, 2 or 3"``; long lists are cut."""
    if len(words) > most:
        return f"{', '.join(words[:most])} ... ({len(words)} in all)"
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"
