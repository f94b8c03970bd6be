"""Rules of the standing workload, without dependencies, for use by other packages.

The model guesses a hidden number and gets the reply "higher" or "lower". With
``fixed`` an episode always has all turns, so that runs are comparable. A guess is a
tool call; for the pretrained model, whose time is arithmetic, two words.
"""

from __future__ import annotations

import dataclasses
import re

CALL = '<tool_call>{{"name": "guess", "arguments": {{"number": {}}}}}</tool_call>'
WORDS = "guess {}"
# Maximum number of sampled tokens of a turn, by the form of a guess.
MAX_NEW_TOKENS = {CALL: 32, WORDS: 8}
INVALID = "invalid"
MAX_TURNS = 5
UPPER = {"fixed": 999, "game": 15}


def form_of(size: str) -> str:
    """Return the form of a guess of the model of this size."""
    return WORDS if size == "smollm" else CALL


def parse_guess(text: str, form: str = CALL) -> int | None:
    """Return the number of the last guess in ``text``, or None."""
    pattern = re.escape(form.format("#")).replace(r"\#", "([0-9]{1,6})")
    numbers = re.findall(pattern, text)
    return int(numbers[-1]) if numbers else None


@dataclasses.dataclass
class NumberGame:
    """One episode.

    Attributes:
        secret: The hidden number, in [1, upper].
        upper: The largest number.
        fixed: Continue after a correct guess until the turns are used up, with a reward
            for closeness at the end. Otherwise the correct guess has reward 1 and ends
            the episode.
        max_turns: Turns of an episode.
    """

    secret: int
    upper: int
    fixed: bool
    max_turns: int = MAX_TURNS
    turn: int = 0

    def __post_init__(self) -> None:
        """Initialise the interval that the replies so far allow."""
        self.low, self.high = 1, self.upper

    @property
    def prompt(self) -> str:
        """The first user message."""
        return f"Guess a number from 1 to {self.upper}."

    def play(self, guess: int | None) -> tuple[str, float, bool]:
        """Take one turn.

        Args:
            guess: The number, or None for an invalid call.

        Returns:
            Reply, reward, and whether the episode is over.
        """
        self.turn += 1
        last = self.turn >= self.max_turns
        if guess is None:
            return INVALID, 0.0, last
        if guess == self.secret:
            reply, done = "correct", last or not self.fixed
        else:
            reply, done = ("higher" if guess < self.secret else "lower"), last
            self._narrow(guess)
        if self.fixed:
            closeness = max(0.0, 1.0 - abs(guess - self.secret) / self.upper)
            return reply, closeness if last else 0.0, done
        return reply, float(guess == self.secret), done

    def _narrow(self, guess: int) -> None:
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
