"""Wordle in text: find a word from the marks of guesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from functools import lru_cache

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.mastermind import most_telling, still_possible
from rllib_llm.envs.parsing import last_match
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.word_list import word_pool, words

_PATTERN = re.compile(r"\bguess[ \t]+([a-z]{4,8})\b", re.IGNORECASE)


@register_text_env("wordle-v0")
class Wordle(TextEnv):
    """Guess a word from marks for right and misplaced letters. Return 1 if found.

    Words are split into train and test by their hash, so that words of ``"test"`` are
    never answers in training; guesses may be any word of the list.
    """

    max_turns = 6
    format_hint = "Please answer as 'guess crane', with an English word."

    def start(self, rng: np.random.Generator, length: int = 5, pool: int = 100) -> str:
        """Draw the hidden word.

        Args:
            rng: Generator of the word.
            length: Number of letters, in [4, 8].
            pool: Number of candidate words in both splits together, at least 20.
        """
        self.length = length
        self.pool = word_pool(length, pool)
        secrets = [word for word in self.pool if in_split(word, self.split)]
        self.secret = secrets[int(rng.integers(len(secrets)))]
        self._replies: list[tuple[str, Hashable]] = []
        example = "crane" if length == 5 else self.pool[0]
        self.format_hint = f"Please answer as 'guess {example}', with an English word."
        return (
            f"Find a word of {length} letters. G: in place, Y: elsewhere, -: no. "
            f"Answer as 'guess {example}'."
        )

    def parse(self, completion: str) -> str | None:
        """Return the word of the last ``guess <word>`` if it is in the word list."""
        match = last_match(_PATTERN, completion)
        word = match.group(1).lower() if match else None
        return word if word in _word_set(self.length) else None

    def reply(self, action: str) -> TurnResult:
        """Compare the guess with the word."""
        if action == self.secret:
            return TurnResult("Correct!", reward=1.0, terminated=True, success=True)
        marks = word_marks(action, self.secret)
        self._replies.append((action, marks))
        return TurnResult(f"{action}: {marks}", success=False)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the most informative guess among the words that are still possible."""
        left = still_possible(self.pool, self._replies, word_marks)
        return f"guess {most_telling(left, word_marks)}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any word of the pool as a guess, including excluded ones."""
        return f"guess {self.pool[int(rng.integers(len(self.pool)))]}"


@lru_cache(maxsize=5)
def _word_set(length: int) -> frozenset[str]:
    return frozenset(words(length))


def word_marks(guess: str, secret: str) -> str:
    """Return a mark per letter: G in its place, Y elsewhere, - not in the secret.

    A letter that a guess repeats is marked at most as often as the secret contains it:
    first the letters in place, then the others from the left.
    """
    left = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    marks = []
    for g, s in zip(guess, secret, strict=True):
        if g == s:
            marks.append("G")
        elif left[g]:
            left[g] -= 1
            marks.append("Y")
        else:
            marks.append("-")
    return "".join(marks)
