"""Hangman in text: find a word letter by letter."""

from __future__ import annotations

import re
import string

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.word_list import word_pool

_PATTERN = re.compile(r"\bletter[ \t]+([a-z])\b", re.IGNORECASE)


@register_text_env("hangman-v0")
class Hangman(TextEnv):
    """Name letters of a hidden word; a wrong one costs a life. Return 1 if found.

    Words are split into train and test by their hash, so that words of ``"test"`` are
    never answers in training.
    """

    max_turns = 14
    format_hint = "Please answer as 'letter e'."

    def start(
        self,
        rng: np.random.Generator,
        length: int = 5,
        pool: int = 100,
        lives: int = 8,
    ) -> str:
        """Draw the hidden word.

        Args:
            rng: Generator of the word.
            length: Number of letters, in [4, 8].
            pool: Number of candidate words in both splits together, at least 20.
            lives: Number of wrong letters that ends the episode, in [1, 26].
        """
        self.pool = word_pool(length, pool)
        self.lives = require_int("lives", lives, 1, 26)
        secrets = [word for word in self.pool if in_split(word, self.split)]
        self.secret = secrets[int(rng.integers(len(secrets)))]
        self.tried = ""
        return (
            f"Find the word, letter by letter. Answer as 'letter e'.\n{self._board()}"
        )

    def parse(self, completion: str) -> str | None:
        """Return the letter of the last ``letter <a-z>``."""
        match = last_match(_PATTERN, completion)
        letter = match.group(1).lower() if match else ""
        # IGNORECASE and lower() also map some non-ASCII letters to a-z.
        return letter if letter and letter in string.ascii_lowercase else None

    def reply(self, action: str) -> TurnResult:
        """Reveal the letter or subtract a life; a repeated letter costs nothing."""
        if action not in self.tried:
            self.tried += action
            self.lives -= action not in self.secret
        shown = _shown(self.secret, self.tried)
        if "_" not in shown:
            return TurnResult(f"{shown}: found!", 1.0, terminated=True, success=True)
        if not self.lives:
            text = f"The word was {self.secret}."
            return TurnResult(text, terminated=True, success=False)
        return TurnResult(self._board(), success=False)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the letter that occurs in most of the remaining words.

        Ties go to the letter whose positions distinguish most words.
        """
        shown = _shown(self.secret, self.tried)
        left = [word for word in self.pool if _shown(word, self.tried) == shown]
        return f"letter {max(self._untried(), key=lambda c: _worth(c, left))}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any untried letter."""
        untried = self._untried()
        return f"letter {untried[int(rng.integers(len(untried)))]}"

    def admissible_actions(self) -> list[str]:
        """Return the untried letters."""
        return [f"letter {c}" for c in self._untried()]

    def _untried(self) -> list[str]:
        return [c for c in string.ascii_lowercase if c not in self.tried]

    def _board(self) -> str:
        """Return the word so far, the wrong letters, and the remaining lives."""
        missed = "".join(c for c in self.tried if c not in self.secret)
        wrong = f", not {missed}" if missed else ""
        shown = _shown(self.secret, self.tried)
        return f"{shown}{wrong}, lives {self.lives}"


def _shown(word: str, tried: str) -> str:
    """Return the word with its untried letters hidden."""
    return "".join(c if c in tried else "_" for c in word)


def _worth(letter: str, left: list[str]) -> tuple[int, int]:
    """Return how many words contain the letter, and in how many patterns."""
    having = [_shown(word, letter) for word in left if letter in word]
    return len(having), len(set(having))
