"""Guess a hidden number: the smallest multi-turn task."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv

_MOST_LISTED = 100


@register_text_env("guess_number-v0")
class GuessNumber(TextEnv):
    """Guess an integer; the reply is "too low" or "too high". Return 1 if correct.

    Optimal play is bisection: ``max_turns`` guesses find any number up to
    ``2**max_turns - 1``. Episodes of both splits are drawn alike, because the prompt
    never reveals the secret.
    """

    max_turns = 5
    format_hint = "Please answer as 'guess 7'."
    _pattern = re.compile(r"\bguess[ \t]+([0-9]{1,6})\b", re.IGNORECASE)

    def start(self, rng: np.random.Generator, upper: int = 31) -> str:
        """Draw the secret, a number between 1 and ``upper``."""
        require_int("upper", upper, 1, 999_999)
        self.low, self.high, self.upper = 1, upper, upper
        self.secret = int(rng.integers(1, upper + 1))
        return f"Find a number from 1 to {upper}. Answer as 'guess 7'."

    def parse(self, completion: str) -> int | None:
        """Return the number of the last ``guess <n>``."""
        match = last_match(self._pattern, completion)
        return int(match.group(1)) if match else None

    def reply(self, action: int) -> TurnResult:
        """Compare the guess with the secret."""
        if action == self.secret:
            return TurnResult("Correct!", reward=1.0, terminated=True, success=True)
        if action < self.secret:
            self.low = max(self.low, action + 1)
            return TurnResult(f"{action} is too low.", success=False)
        self.high = min(self.high, action - 1)
        return TurnResult(f"{action} is too high.", success=False)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the middle of the range that the replies leave."""
        return f"guess {(self.low + self.high) // 2}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any guess that the replies leave."""
        return f"guess {rng.integers(self.low, self.high + 1)}"

    def admissible_actions(self) -> list[str] | None:
        """Return all guesses if there are at most 100, including excluded ones."""
        if self.upper > _MOST_LISTED:
            return None
        return [f"guess {n}" for n in range(1, self.upper + 1)]
