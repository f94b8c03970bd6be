"""English words of SCOWL for word games, from data/words.json (see NOTICE)."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from rllib_llm.envs.parsing import require_int

_DATA = Path(__file__).parent / "data" / "words.json"


@lru_cache(maxsize=1)
def _all_words() -> dict[int, tuple[str, ...]]:
    by_length = json.loads(_DATA.read_text(encoding="utf-8"))
    return {int(n): tuple(" ".join(lines).split()) for n, lines in by_length.items()}


def words(length: int) -> tuple[str, ...]:
    """Return all words of ``length`` letters, from 4 to 8, sorted.

    Raises:
        ConfigError: For another length.
    """
    return _all_words()[require_int("length", length, 4, 8)]


@lru_cache(maxsize=16)
def word_pool(length: int, pool: int) -> tuple[str, ...]:
    """Return ``pool`` of the words of ``length`` letters, sorted.

    Smaller pools are subsets of larger ones. The hash that orders the words differs
    from that of :func:`~rllib_llm.envs.text_env.in_split`, so that pools contain both
    splits.

    Raises:
        ConfigError: If there are no such words, or fewer than ``pool``.
    """
    all_words = words(length)
    require_int("pool", pool, 20, len(all_words))
    return tuple(sorted(sorted(all_words, key=_order)[:pool]))


def _order(word: str) -> bytes:
    return hashlib.blake2b(f"pool {word}".encode(), digest_size=8).digest()
