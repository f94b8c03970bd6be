"""Mastermind in text: find a hidden code from the marks of guesses."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable
from functools import lru_cache

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv

Marks = Callable[[str, str], Hashable]
"""The reply to a guess, given the secret."""

_MOST_LISTED = 100
# Limit of the expert's comparisons per turn, for a few tenths of a second.
_MOST_COMPARED = 100_000
_PATTERN = re.compile(r"\bguess[ \t]+([1-8]{2,5})\b", re.IGNORECASE)


@register_text_env("mastermind-v0")
class Mastermind(TextEnv):
    """Guess a code from counts of correct and misplaced digits. Return 1 if found.

    Episodes of both splits are drawn alike: the prompt never reveals the code, and a
    policy would learn from codes that are never answers in training not to guess them.
    """

    max_turns = 6
    format_hint = "Please answer as 'guess 123'."

    def start(self, rng: np.random.Generator, length: int = 3, symbols: int = 4) -> str:
        """Draw the hidden code.

        Args:
            rng: Generator of the code.
            length: Number of digits, in [2, 5].
            symbols: Largest digit, in [2, 8]; the digits start at 1 and may repeat.
        """
        require_int("length", length, 2, 5)
        require_int("symbols", symbols, 2, 8)
        self.length, self.symbols = length, symbols
        codes = all_codes(length, symbols)
        self.secret = codes[int(rng.integers(len(codes)))]
        self._replies: list[tuple[str, Hashable]] = []
        example = "".join(str(i % symbols + 1) for i in range(length))
        self.format_hint = f"Please answer as 'guess {example}'."
        return (
            f"Find a code of {length} digits from 1 to {symbols}. "
            f"Answer as 'guess {example}'."
        )

    def parse(self, completion: str) -> str | None:
        """Return the code of the last ``guess <code>`` if it has the right shape."""
        match = last_match(_PATTERN, completion)
        code = match.group(1) if match else ""
        fits = len(code) == self.length and max(code) <= str(self.symbols)
        return code if fits else None

    def reply(self, action: str) -> TurnResult:
        """Compare the guess with the code."""
        if action == self.secret:
            return TurnResult("Correct!", reward=1.0, terminated=True, success=True)
        placed, misplaced = code_marks(action, self.secret)
        self._replies.append((action, (placed, misplaced)))
        text = f"{action}: {placed} placed, {misplaced} misplaced"
        return TurnResult(text, success=False)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the most informative guess among the codes that are still possible."""
        left = still_possible(
            all_codes(self.length, self.symbols), self._replies, code_marks
        )
        return f"guess {most_telling(left, code_marks)}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any guess, including excluded ones."""
        codes = all_codes(self.length, self.symbols)
        return f"guess {codes[int(rng.integers(len(codes)))]}"

    def admissible_actions(self) -> list[str] | None:
        """Return all guesses if there are at most 100, including excluded ones."""
        codes = all_codes(self.length, self.symbols)
        return [f"guess {c}" for c in codes] if len(codes) <= _MOST_LISTED else None


@lru_cache(maxsize=8)
def all_codes(length: int, symbols: int) -> tuple[str, ...]:
    """Return all codes of ``length`` digits from 1 to ``symbols``."""
    digits = "12345678"[:symbols]
    return tuple("".join(c) for c in itertools.product(digits, repeat=length))


def code_marks(guess: str, secret: str) -> tuple[int, int]:
    """Return the numbers of digits in the right place, and of further shared ones."""
    placed = sum(g == s for g, s in zip(guess, secret, strict=True))
    shared = sum(min(guess.count(d), secret.count(d)) for d in set(guess))
    return placed, shared - placed


def still_possible(
    secrets: tuple[str, ...], replies: list[tuple[str, Hashable]], marks: Marks
) -> tuple[str, ...]:
    """Return the secrets that are consistent with all ``(guess, marks)`` replies."""
    return tuple(s for s in secrets if all(marks(g, s) == m for g, m in replies))


@lru_cache(maxsize=4096)
def most_telling(possible: tuple[str, ...], marks: Marks) -> str:
    """Return the possible secret whose reply, as a guess, has the highest entropy.

    With many secrets, only an evenly spaced subset is considered as guesses. Ties go to
    the first.

    Args:
        possible: The remaining secrets, all equally likely; at least one.
        marks: Reply to a guess.
    """
    step = math.ceil(len(possible) ** 2 / _MOST_COMPARED)
    return max(possible[::step], key=lambda g: _entropy(g, possible, marks))


def _entropy(guess: str, possible: tuple[str, ...], marks: Marks) -> float:
    """Return the entropy of the reply to ``guess``, in nats."""
    counts = Counter(marks(guess, secret) for secret in possible).values()
    # fsum does not depend on the order, so that equally informative guesses tie.
    total = math.fsum(n * math.log(n / len(possible)) for n in counts)
    return -total / len(possible)
