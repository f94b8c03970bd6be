"""Gymnasium's Taxi in text: bring a passenger to their destination."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from gymnasium.envs.toy_text.taxi import TaxiEnv

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_bool, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.toy_text import action_values

ACTIONS = ("go down", "go up", "go right", "go left", "pick up", "drop off")
"""Texts of Gymnasium's actions, in its order."""

_STOPS = "RGYB"
_DELIVERED = 20
_PATTERN = re.compile(
    r"\b(go[ \t]+(?:down|up|right|left)|pick[ \t]+up|drop[ \t]+off)\b", re.IGNORECASE
)


@register_text_env("taxi-v0")
class Taxi(TextEnv):
    """Drive on a fixed map. Reward -1 a turn, 20 on delivery, -10 for a wrong pick up.

    States, dynamics and rewards are those of Gymnasium's ``TaxiEnv``. Episodes differ
    in the positions of the taxi, the passenger and the destination; these starts are
    split into train and test by their hash.
    """

    max_turns = 20
    format_hint = f"Say {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}."

    def start(
        self,
        rng: np.random.Generator,
        farthest: int = 18,
        rainy: bool = False,
        fickle: bool = False,
    ) -> str:
        """Draw a start.

        Args:
            rng: Generator of the start, of slides in the rain, and of new destinations.
            farthest: Maximum number of turns of a delivery from the start without rain,
                in [8, 18]; 18 allows all starts.
            rainy: Whether moves slide to either side, with probability 0.1 each.
            fickle: Whether 3 in 10 passengers change their destination once.
        """
        require_int("farthest", farthest, 8, 18)
        require_bool("rainy", rainy)
        require_bool("fickle", fickle)
        starts = self._starts(farthest)
        self.rainy = rainy
        self._taxi = TaxiEnv(is_rainy=rainy, fickle_passenger=fickle)
        self._taxi.reset(seed=int(rng.integers(2**31)))
        self._taxi.s = starts[int(rng.integers(len(starts)))]
        rain = " Rain: you may slide." if rainy else ""
        return f"{self._map()}\n| wall.{rain} {self.format_hint}\n{self._observation()}"

    def parse(self, completion: str) -> str | None:
        """Return the last action."""
        match = last_match(_PATTERN, completion)
        return " ".join(match.group(1).lower().split()) if match else None

    def reply(self, action: str) -> TurnResult:
        """Drive, pick up or drop off, and describe the new state."""
        _, reward, terminated, truncated, _ = self._taxi.step(ACTIONS.index(action))
        success = reward == _DELIVERED
        text = "Delivered!" if success else self._observation()
        return TurnResult(text, float(reward), terminated, truncated, success)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the action of the optimal policy for the current destination."""
        return ACTIONS[int(np.argmax(_values(self.rainy)[self._taxi.s]))]

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any action."""
        return ACTIONS[int(rng.integers(len(ACTIONS)))]

    def admissible_actions(self) -> list[str]:
        """Return the six actions."""
        return list(ACTIONS)

    def optimal_value(self) -> float:
        """Return the best expected return from here, with unlimited turns."""
        return float(_values(self.rainy)[self._taxi.s].max())

    def _starts(self, farthest: int) -> list[int]:
        # The optimal return of n turns is -1 for each but the last, and 20 for that.
        turns = 1 + _DELIVERED - _values(False).max(1)
        return [
            int(s)
            for s in np.flatnonzero(_engine(False).initial_state_distrib)
            if round(turns[s]) <= farthest and in_split(f"taxi {s}", self.split)
        ]

    def _map(self) -> str:
        """Return the map, one row per line: cells in even columns, walls between."""
        rows = [row.tobytes().decode()[1:-1] for row in self._taxi.desc[1:-1]]
        lines = [[*row.replace(":", " ")] for row in rows]
        for line in lines:
            line[::2] = ["." if cell == " " else cell for cell in line[::2]]
        return "\n".join("".join(line) for line in lines)

    def _observation(self) -> str:
        row, column, passenger, to = self._taxi.decode(self._taxi.s)
        riding = passenger == len(_STOPS)
        where = "in the taxi" if riding else f"at {_STOPS[passenger]}"
        stops = dict(zip(self._taxi.locs, _STOPS, strict=True))
        stop = f" ({stops[row, column]})" if (row, column) in stops else ""
        here = f"row {row + 1} column {column + 1}{stop}"
        return f"{here}, passenger {where}, to {_STOPS[to]}"


@lru_cache(maxsize=2)
def _engine(rainy: bool) -> TaxiEnv:
    return TaxiEnv(is_rainy=rainy)


@lru_cache(maxsize=2)
def _values(rainy: bool) -> np.ndarray:
    """Return the optimal values [states, actions]."""
    return action_values(_engine(rainy).P)
