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

    Words are split into train and test by their hash, so that words of ``"test"`` were
    never the answer in training.
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
        """Hide a word.

        Args:
            rng: Decides the word.
            length: Letters of the word, in [4, 8].
            pool: How many words there are, of both splits; at least 20.
            lives: Wrong letters that end the episode, in [1, 26].
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
        """Read the last ``letter <a-z>``."""
        match = last_match(_PATTERN, completion)
        letter = match.group(1).lower() if match else ""
        # Unicode has letters that lower() turns into, or IGNORECASE matches as, a-z.
        return letter if letter and letter in string.ascii_lowercase else None

    def reply(self, action: str) -> TurnResult:
        """Show where the letter is, or take a life; a letter tried before is free."""
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
        """Name the letter that is in most of the words left.

        Among equals it is the one whose places tell most.
        """
        shown = _shown(self.secret, self.tried)
        left = [word for word in self.pool if _shown(word, self.tried) == shown]
        return f"letter {max(self._untried(), key=lambda c: _worth(c, left))}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Name any letter that was not tried."""
        untried = self._untried()
        return f"letter {untried[int(rng.integers(len(untried)))]}"

    def admissible_actions(self) -> list[str]:
        """List the letters that were not tried."""
        return [f"letter {c}" for c in self._untried()]

    def _untried(self) -> list[str]:
        return [c for c in string.ascii_lowercase if c not in self.tried]

    def _board(self) -> str:
        """Show the word so far, the wrong letters, and the lives left."""
        missed = "".join(c for c in self.tried if c not in self.secret)
        wrong = f", not {missed}" if missed else ""
        shown = _shown(self.secret, self.tried)
        return f"{shown}{wrong}, lives {self.lives}"


def _shown(word: str, tried: str) -> str:
    """Return the word with the letters that were not tried hidden."""
    return "".join(c if c in tried else "_" for c in word)


def _worth(letter: str, left: list[str]) -> tuple[int, int]:
    """Return how many words hold the letter, and in how many ways."""
    having = [_shown(word, letter) for word in left if letter in word]
    return len(having), len(set(having))
