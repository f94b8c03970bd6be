"""The space of arbitrary text, and the test for numeric spaces."""

from __future__ import annotations

import gymnasium as gym
from gymnasium import spaces


class UnicodeText(gym.Space):
    """The space of all Python strings.

    Gymnasium's ``Text`` space admits only listed characters, and RLlib's checkpoints
    cannot serialise it to JSON; a language model may write any character.
    """

    def __init__(self) -> None:
        super().__init__(shape=(), dtype=str)

    def sample(self, mask: object = None, probability: object = None) -> str:
        """Return a short random lower-case word."""
        letters = self.np_random.integers(ord("a"), ord("z") + 1, size=8)
        return "".join(map(chr, letters))

    def contains(self, x: object) -> bool:
        """Return whether ``x`` is a ``str``."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    def __hash__(self) -> int:
        return hash(UnicodeText)

    def __repr__(self) -> str:
        return "UnicodeText()"


def is_of_numbers(space: gym.Space) -> bool:
    """Return whether an agent with this observation space reads numbers, not text."""
    if isinstance(space, spaces.Dict):
        return "text" not in space.spaces
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(space, (*kinds, spaces.Tuple))
