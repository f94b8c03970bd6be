"""Gymnasium's CliffWalking in text: reach the far corner beside a cliff."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.grid import MOVE_FORMAT, parse_move
from rllib_llm.envs.parsing import require_bool
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.toy_text import action_values

ORDER = ("up", "right", "down", "left")
"""The moves in the order of Gymnasium's actions."""

_COLUMNS = 12
_START, _GOAL = 36, 47  # row 4, columns 1 and 12
_FALL = -100


@register_text_env("cliff_walking-v0")
class CliffWalking(TextEnv):
    """Walk to the goal. Reward -1 per move, -100 and back to the start for a fall.

    States, dynamics and rewards are those of Gymnasium's ``CliffWalkingEnv``, whose
    episodes all start alike. With ``anywhere`` they start in any safe cell, and cells
    are split into train and test by their hash.
    """

    max_turns = 20
    format_hint = MOVE_FORMAT

    def start(
        self, rng: np.random.Generator, slippery: bool = False, anywhere: bool = False
    ) -> str:
        """Set up the starting cell.

        Args:
            rng: Generator of the start, with ``anywhere``, and of slides.
            slippery: Whether a move slides to either side, with probability 1/3 each.
            anywhere: Whether to start in any safe cell instead of row 4 column 1.
        """
        self.slippery = require_bool("slippery", slippery)
        require_bool("anywhere", anywhere)
        self._walk = CliffWalkingEnv(is_slippery=slippery)
        self._walk.reset(seed=int(rng.integers(2**31)))
        if anywhere:
            cells = [c for c in range(_START + 1) if in_split(f"cell {c}", self.split)]
            self._walk.s = cells[int(rng.integers(len(cells)))]
        slips = " The ground is slippery." if slippery else ""
        return (
            f"4 rows, 12 columns. Reach row 4 column 12; the rest of row 4 but column "
            f"1 is a cliff.{slips} {MOVE_FORMAT}\n{self._observation()}"
        )

    def parse(self, completion: str) -> str | None:
        """Return the last ``go <direction>``."""
        return parse_move(completion)

    def reply(self, action: str) -> TurnResult:
        """Move, slide if the ground is slippery, and describe the new position."""
        move = ORDER.index(action)
        _, reward, terminated, truncated, _ = self._walk.step(move)
        if terminated:
            text = "You reached the goal!"
        else:
            text = "You fell. " * (reward == _FALL) + self._observation()
        return TurnResult(text, float(reward), terminated, truncated, bool(terminated))

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the move of the optimal policy."""
        return f"go {ORDER[int(np.argmax(_values(self.slippery)[self._walk.s]))]}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any move."""
        return f"go {ORDER[int(rng.integers(len(ORDER)))]}"

    def admissible_actions(self) -> list[str]:
        """Return the four moves."""
        return [f"go {move}" for move in ORDER]

    def optimal_value(self) -> float:
        """Return the best expected return from here, with unlimited turns."""
        return float(_values(self.slippery)[self._walk.s].max())

    def _observation(self) -> str:
        row, column = divmod(int(self._walk.s), _COLUMNS)
        return f"row {row + 1} column {column + 1}"


@lru_cache(maxsize=2)
def _values(slippery: bool) -> np.ndarray:
    """Return the optimal values [states, actions]."""
    table = dict(CliffWalkingEnv(is_slippery=slippery).P)
    # Gymnasium's table has moves out of the goal, which would not let values converge.
    table[_GOAL] = {a: [(1.0, _GOAL, 0.0, True)] for a in table[_GOAL]}
    return action_values(table)
