"""Referential game: a speaker describes a target in a small code, a listener picks."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.errors import ConfigError

COLOURS = ("red", "blue", "gold", "pink", "gray", "teal")
SHAPES = ("star", "moon", "ring", "cube", "leaf", "fish")
WORDS = ("ba", "de", "gi", "ko", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve")
_MAX_DRAWS = 1_000


@register_text_env("referential-v0")
class Referential(MultiAgentTextEnv):
    """Name the target in an artificial code, pick it out. Return 1 for each if right.

    Lewis' signalling game with two attributes: the words have no meaning before the
    agents agree on one. Instances are split into train and test by the hash of the
    target and its distractors.
    """

    possible_agents = ["speaker_0", "listener_0"]
    format_hint = "Please answer with the words on offer, or as 'pick 1'."
    _pick = re.compile(r"\bpick[ \t]+([0-9])\b", re.IGNORECASE)
    _word = re.compile(r"\b[a-z]{2}\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        candidates: int = 3,
        values: int = 3,
        words: int = 6,
        length: int = 2,
    ) -> None:
        """Draw the target and its distractors.

        Args:
            rng: Generator of the instance.
            candidates: Number of objects that the listener chooses from, in [2, 6].
            values: Number of colours, and of shapes, in [3, 6].
            words: Size of the code, in [2, 12].
            length: Maximum length of the message, in words, in [1, 4].
        """
        require_int("candidates", candidates, 2, 6)
        require_int("values", values, 3, len(SHAPES))
        self.words = WORDS[: require_int("words", words, 2, len(WORDS))]
        self.length = require_int("length", length, 1, 4)
        for _ in range(_MAX_DRAWS):
            cells = rng.choice(values * values, size=candidates, replace=False)
            objects = [(int(c) // values, int(c) % values) for c in cells]
            if in_split(f"{objects[0]} {sorted(objects)}", self.split):
                break
        else:
            raise ConfigError(
                f"No {self.split} instance referents in {_MAX_DRAWS} draws with "
                f"candidates={candidates}, values={values}. Raise either of them."
            )
        # With enough words, the expert uses separate ones for shapes and colours.
        self.shape_words = values if words >= 2 * values else 0
        self.target, self.objects = objects[0], objects
        self.shown = [objects[i] for i in rng.permutation(candidates)]
        self.message: tuple[str, ...] = ()

    def prompt_for(self, agent: str) -> str:
        """Return the target to the speaker, words and candidates to the listener."""
        if agent == "speaker_0":
            others = ", ".join(map(_name, self.objects[1:]))
            return (
                f"Target: {_name(self.target)}. Others: {others}. "
                f"Say up to {self.length} of: {' '.join(self.words)}"
            )
        listed = ", ".join(f"{i} {_name(o)}" for i, o in enumerate(self.shown, 1))
        return f"speaker_0 says {' '.join(self.message) or '-'}. {listed}. Pick one."

    def parse(self, agent: str, text: str) -> tuple[str, ...] | int | None:
        """Return the speaker's last words of the code, or the listener's pick."""
        if agent == "speaker_0":
            mentioned = [w.lower() for w in self._word.findall(text)]
            code = tuple(w for w in mentioned if w in self.words)
            return code[-self.length :] or None
        match = last_match(self._pick, text)
        number = int(match.group(1)) if match else 0
        return number if 1 <= number <= len(self.shown) else None

    def apply(self, agent: str, action: tuple[str, ...] | int) -> Outcome | None:
        """Pass on the message, or compare the pick with the target."""
        if isinstance(action, tuple):
            self.message = action
            return None
        right = self.shown[action - 1] == self.target
        rewards = dict.fromkeys(self.possible_agents, float(right))
        return Outcome(rewards, terminated=True, success=right)

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Follow a convention: one word for each colour, one for each shape."""
        if agent == "speaker_0":
            return " ".join(self._code(self.target))
        scores = [
            sum(a == b for a, b in zip(self._code(o), self.message, strict=False))
            for o in self.shown
        ]
        return f"pick {int(np.argmax(scores)) + 1}"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return random words, or a random pick."""
        if agent == "speaker_0":
            return " ".join(rng.choice(self.words, size=self.length))
        return f"pick {rng.integers(1, len(self.shown) + 1)}"

    def _code(self, item: tuple[int, int]) -> list[str]:
        """Return the words of an object; meanings share words if there are too few."""
        colour, shape = item
        pair = colour, self.shape_words + shape
        return [self.words[i % len(self.words)] for i in pair][: self.length]


def _name(item: tuple[int, int]) -> str:
    return f"{COLOURS[item[0]]} {SHAPES[item[1]]}"
