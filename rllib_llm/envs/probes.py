"""Probe environments: tiny tasks with a known best return, for learning tests.

A correct algorithm solves each in seconds. A failure points at the single ability that
the probe isolates.
"""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

WORDS = ("red", "green", "blue", "gold", "black", "white", "pink", "gray")


class _WordProbe(TextEnv):
    """A probe whose actions are the first ``words`` of ``WORDS``."""

    # Retries would change the known returns of the best and the random policy.
    invalid_action = "end"
    _pattern = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
    words: tuple[str, ...] = WORDS

    def parse(self, completion: str) -> str | None:
        """Return the last colour word that is an action."""
        match = last_match(self._pattern, completion)
        word = match.group(1).lower() if match else None
        return word if word in self.words else None

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any of the words."""
        return self.words[int(rng.integers(len(self.words)))]

    def admissible_actions(self) -> list[str]:
        """Return the words that are actions."""
        return list(self.words)


@register_text_env("bandit_probe-v0")
class BanditProbe(_WordProbe):
    """Say one word; always the same one is rewarded. Best return 1, random 1/words.

    Tests the advantage of a single action, without reading, memory or several turns.
    """

    max_turns = 1
    format_hint = "Please say one of the words."

    def start(self, rng: np.random.Generator, words: int = 4, rewarded: int = 2) -> str:
        """Set the words.

        Args:
            rng: Unused; all episodes are alike.
            words: Number of words, in [2, 8].
            rewarded: Index of the word with reward 1, in [0, words).
        """
        self.words = WORDS[: require_int("words", words, 2, len(WORDS))]
        self.rewarded = self.words[require_int("rewarded", rewarded, 0, words - 1)]
        return f"Say one word: {' '.join(self.words)}"

    def reply(self, action: str) -> TurnResult:
        """Reward the one word."""
        right = action == self.rewarded
        text = "Correct!" if right else "Wrong."
        return TurnResult(text, float(right), terminated=True, success=right)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the rewarded word."""
        return self.rewarded


@register_text_env("copy_probe-v0")
class CopyProbe(_WordProbe):
    """Repeat the word shown, twice. Best return 1 (0.5 a turn), random 1/words.

    Tests reading of the newest message, and the advantages of two separate turns.
    """

    max_turns = 2
    format_hint = "Please repeat the word."

    def start(self, rng: np.random.Generator, words: int = 4) -> str:
        """Draw the two words to show.

        Args:
            rng: Generator of the words.
            words: Number of words, in [2, 8].
        """
        self.words = WORDS[: require_int("words", words, 2, len(WORDS))]
        self.shown = [self.words[int(i)] for i in rng.integers(words, size=2)]
        self.answered = self.hits = 0
        return f"Say {self.shown[0]}"

    def reply(self, action: str) -> TurnResult:
        """Compare with the word shown, and show the next one."""
        right = action == self.shown[self.answered]
        self.answered += 1
        self.hits += right
        last = self.answered == len(self.shown)
        return TurnResult(
            "Done." if last else f"Say {self.shown[self.answered]}",
            reward=0.5 * right,
            terminated=last,
            success=self.hits == len(self.shown),
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the word shown."""
        return self.shown[self.answered]


@register_text_env("delay_probe-v0")
class DelayProbe(_WordProbe):
    """Only the first word counts, rewarded turns later. Best return 1, random 1/words.

    Tests credit assignment over a distance: words in between have no effect.
    """

    max_turns = 13
    format_hint = "Please say one of the words."

    def start(
        self,
        rng: np.random.Generator,
        words: int = 4,
        rewarded: int = 2,
        distance: int = 3,
    ) -> str:
        """Set the words.

        Args:
            rng: Unused; all episodes are alike.
            words: Number of words, in [2, 8].
            rewarded: Index of the word with reward 1, in [0, words).
            distance: Turns between the choice and its reward, in [1, 12].
        """
        self.words = WORDS[: require_int("words", words, 2, len(WORDS))]
        self.rewarded = self.words[require_int("rewarded", rewarded, 0, words - 1)]
        self.left = require_int("distance", distance, 1, 12)
        if distance + 1 > self.max_turns:
            raise ConfigError(
                f"distance={distance} needs {distance + 1} turns, but max_turns="
                f"{self.max_turns}. Raise max_turns in env_config."
            )
        self.chosen: str | None = None
        return f"Say one word: {' '.join(self.words)}"

    def reply(self, action: str) -> TurnResult:
        """Store the first word; reward it in the last turn."""
        if self.chosen is None:
            self.chosen = action
        else:
            self.left -= 1
        if self.left:
            return TurnResult("Any word.")
        right = self.chosen == self.rewarded
        text = "Correct!" if right else "Wrong."
        return TurnResult(text, float(right), terminated=True, success=right)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the rewarded word, then any word."""
        return self.rewarded if self.chosen is None else self.random_action(rng)


@register_text_env("tool_probe-v0")
class ToolProbe(_WordProbe):
    """Say the word, which is shown or can be looked up. Best return 1, or 1 - cost.

    Tests whether a policy looks the word up only in the episodes that hide it.
    """

    max_turns = 4
    format_hint = "Please say one of the words, or look."
    _look = "look"
    _pattern = re.compile(rf"\b({'|'.join(WORDS)}|{_look})\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        words: int = 4,
        hidden: float = 0.5,
        cost: float = 0.2,
    ) -> str:
        """Draw the word, and whether it is hidden.

        Args:
            rng: Generator of both.
            words: Number of words, in [2, 8].
            hidden: Probability that the word is hidden, in [0, 1].
            cost: Negative reward of looking, in [0, 1].
        """
        offered = WORDS[: require_int("words", words, 2, len(WORDS))]
        self.cost = require_float("cost", cost, 0.0, 1.0)
        self.words = (*offered, self._look)
        self.right = offered[int(rng.integers(words))]
        self.needed = bool(rng.random() < require_float("hidden", hidden, 0.0, 1.0))
        self.shown, self.looks = not self.needed, 0
        what = "hidden" if self.needed else self.right
        return f"The word is {what}. Say it, or look."

    def reply(self, action: str) -> TurnResult:
        """Show the word at a cost, or compare."""
        if action == self._look:
            self.looks, self.shown = self.looks + 1, True
            return TurnResult(f"It is {self.right}.", -self.cost)
        right = action == self.right
        counts = {
            "looks_needed": float(bool(self.looks) and self.needed),
            "looks_needless": self.looks - float(bool(self.looks) and self.needed),
        }
        return TurnResult(
            "Correct!" if right else "Wrong.",
            float(right),
            terminated=True,
            success=right,
            metrics=counts,
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Look if the word is hidden, then say it."""
        return self.right if self.shown else self._look
