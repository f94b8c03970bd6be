"""Mastermind in text: find a hidden code from how close guesses come."""

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
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError

Marks = Callable[[str, str], Hashable]
"""What a game answers to a guess, given the secret."""

_MOST_LISTED = 100
# About how many pairs the expert compares per turn: some tenths of a second.
_MOST_COMPARED = 100_000
_PATTERN = re.compile(r"\bguess[ \t]+([1-8]{2,5})\b", re.IGNORECASE)


@register_text_env("mastermind-v0")
class Mastermind(TextEnv):
    """Guess a code; hear how many digits are right, placed or not. Return 1 if found.

    Codes are split into train and test by their hash, so that codes of ``"test"`` were
    never the answer in training; all may be guessed.
    """

    max_turns = 6
    format_hint = "Please answer as 'guess 123'."

    def start(self, rng: np.random.Generator, length: int = 3, symbols: int = 4) -> str:
        """Hide a code.

        Args:
            rng: Decides the code.
            length: Digits of the code, in [2, 5].
            symbols: The digits are 1 to ``symbols``, in [2, 8]; they may repeat.
        """
        require_int("length", length, 2, 5)
        require_int("symbols", symbols, 2, 8)
        self.length, self.symbols = length, symbols
        codes = [c for c in all_codes(length, symbols) if in_split(c, self.split)]
        if not codes:
            raise ConfigError(
                f"length={length} and symbols={symbols} leave no code to the split "
                f"{self.split!r}. Raise either."
            )
        self.secret = codes[int(rng.integers(len(codes)))]
        self._heard: list[tuple[str, Hashable]] = []
        example = "".join(str(i % symbols + 1) for i in range(length))
        self.format_hint = f"Please answer as 'guess {example}'."
        return (
            f"Find a code of {length} digits from 1 to {symbols}. "
            f"Answer as 'guess {example}'."
        )

    def parse(self, completion: str) -> str | None:
        """Read the last ``guess <code>``; a code of another shape is none."""
        match = last_match(_PATTERN, completion)
        code = match.group(1) if match else ""
        fits = len(code) == self.length and max(code) <= str(self.symbols)
        return code if fits else None

    def reply(self, action: str) -> TurnResult:
        """Compare the guess with the code."""
        if action == self.secret:
            return TurnResult("Correct!", reward=1.0, terminated=True, success=True)
        placed, misplaced = code_marks(action, self.secret)
        self._heard.append((action, (placed, misplaced)))
        text = f"{action}: {placed} placed, {misplaced} misplaced"
        return TurnResult(text, success=False)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Guess a code that is still possible and whose answer tells most."""
        left = still_possible(
            all_codes(self.length, self.symbols), self._heard, code_marks
        )
        return f"guess {most_telling(left, code_marks)}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Guess any code, also those that the answers exclude."""
        codes = all_codes(self.length, self.symbols)
        return f"guess {codes[int(rng.integers(len(codes)))]}"

    def admissible_actions(self) -> list[str] | None:
        """List all guesses, also those that the answers exclude; at most 100."""
        codes = all_codes(self.length, self.symbols)
        return [f"guess {c}" for c in codes] if len(codes) <= _MOST_LISTED else None


@lru_cache(maxsize=8)
def all_codes(length: int, symbols: int) -> tuple[str, ...]:
    """Return all codes of ``length`` digits from 1 to ``symbols``."""
    digits = "12345678"[:symbols]
    return tuple("".join(c) for c in itertools.product(digits, repeat=length))


def code_marks(guess: str, secret: str) -> tuple[int, int]:
    """Return how many digits are in their place, and how many more are elsewhere."""
    placed = sum(g == s for g, s in zip(guess, secret, strict=True))
    shared = sum(min(guess.count(d), secret.count(d)) for d in set(guess))
    return placed, shared - placed


def still_possible(
    secrets: tuple[str, ...], heard: list[tuple[str, Hashable]], marks: Marks
) -> tuple[str, ...]:
    """Return the secrets that would have answered every guess as was ``heard``."""
    return tuple(s for s in secrets if all(marks(g, s) == m for g, m in heard))


@lru_cache(maxsize=4096)
def most_telling(possible: tuple[str, ...], marks: Marks) -> str:
    """Return the secret whose answer, if guessed, has the greatest entropy.

    Where there are many secrets, only some of them are weighed up as guesses, evenly
    spread. Among equals the first one wins.

    Args:
        possible: The secrets left, all equally likely; at least one.
        marks: What is answered to a guess.
    """
    step = math.ceil(len(possible) ** 2 / _MOST_COMPARED)
    return max(possible[::step], key=lambda g: _entropy(g, possible, marks))


def _entropy(guess: str, possible: tuple[str, ...], marks: Marks) -> float:
    """Return the entropy of the answer to ``guess``, in nats."""
    counts = Counter(marks(guess, secret) for secret in possible).values()
    # fsum: the same in any order, so that guesses that tell as much are equal.
    total = math.fsum(n * math.log(n / len(possible)) for n in counts)
    return -total / len(possible)
