"""Gymnasium's FrozenLake in text, with a new random map in every episode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.grid import (
    MOVE_FORMAT,
    MOVES,
    Cell,
    distances,
    neighbour,
    parse_move,
)
from rllib_llm.envs.parsing import require_bool, require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError

_MAX_DRAWS = 2_000
_SYMBOLS = {"S": "_", "F": "_", "H": "O", "G": "G"}


@register_text_env("frozen_lake-v0")
class FrozenLake(TextEnv):
    """Cross the ice to the goal, one move per turn. Return 1 if reached.

    Dynamics and rewards are those of Gymnasium's ``FrozenLakeEnv``. Each episode draws
    a new map with a path of at most ``max_turns`` moves. Maps are split into train and
    test by their hash. The first message shows the map. Each message gives the position
    and the moves onto ice that was not visited yet or, without any, the way back. On
    slippery ice it lists the moves that cannot end in a hole instead, whatever the
    slide.
    """

    max_turns = 12
    format_hint = MOVE_FORMAT

    def start(
        self,
        rng: np.random.Generator,
        size: int = 4,
        slippery: bool = False,
        frozen_prob: float = 0.8,
        thoughts: bool = False,
    ) -> str | TurnResult:
        """Draw a map.

        Args:
            rng: Generator of the map and, on slippery ice, of slides.
            size: Number of rows and columns, in [3, 16].
            slippery: Whether a move slides to either side, with probability 1/3 each.
            frozen_prob: Probability that a cell is ice instead of a hole, in [0, 1].
            thoughts: Whether scripted policies repeat the position and the listed moves
                before their move.
        """
        self.thoughts = require_bool("thoughts", thoughts)
        require_int("size", size, 3, 16)
        require_float("frozen_prob", frozen_prob, 0.0, 1.0)
        self.slippery = require_bool("slippery", slippery)
        self.map = self._draw_map(rng, size, frozen_prob)
        self._lake = FrozenLakeEnv(desc=self.map, is_slippery=slippery)
        self._lake.reset(seed=int(rng.integers(2**31)))
        self._values: np.ndarray | None = None
        self._trail: list[Cell] = []
        self._seen: set[Cell] = set()
        self._arrive()
        ice = " The ice is slippery." if slippery else ""
        return (
            f"{self._grid()}\nP you, O hole. Reach G.{ice} {MOVE_FORMAT}"
            f"\n{self._surroundings()}"
        )

    def parse(self, completion: str) -> str | None:
        """Return the last ``go <direction>``."""
        return parse_move(completion)

    def reply(self, action: str) -> TurnResult:
        """Move, slide if the ice is slippery, and describe the new position."""
        move = list(MOVES).index(action)
        _, reward, terminated, truncated, _ = self._lake.step(move)
        success = reward > 0
        self._arrive()
        if terminated:
            text = "You reached the goal!" if success else "You fell into a hole."
        else:
            text = self._surroundings()
        return TurnResult(text, float(reward), terminated, truncated, success)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return a move of a shortest path over new ice, or of the optimal policy.

        The optimal policy is for slippery ice. Elsewhere the expert picks among the
        moves in the observation: after a mistake it explores depth first instead of
        retracing its steps.
        """
        if self.slippery:
            turns_left = max(1, self.max_turns - self.turn)
            gains = self._action_values(
                self._lake.s, self._value_table()[turns_left - 1]
            )
            return self._with_thought(list(MOVES)[int(np.argmax(gains))])
        # Moves without a path to the goal come last.
        to_goal = _distances_to_goal(self.map)
        here = self._position()
        listed = [move for moves in self._listed_moves().values() for move in moves]
        best = min(listed, key=lambda m: to_goal.get(neighbour(here, m), 10**6))
        return self._with_thought(best)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any move."""
        return self._with_thought(list(MOVES)[int(rng.integers(len(MOVES)))])

    def admissible_actions(self) -> list[str]:
        """Return the four moves."""
        return [f"go {move}" for move in MOVES]

    def optimal_value(self) -> float:
        """Return the success probability of the best policy on the current map.

        The value is exact: backward induction over ``max_turns`` turns with Gymnasium's
        transition table, from the starting cell.
        """
        return float(self._value_table()[self.max_turns, 0])

    def _with_thought(self, move: str) -> str:
        """Return a scripted policy's text."""
        return f"{self._surroundings()}. go {move}" if self.thoughts else f"go {move}"

    def _draw_map(
        self, rng: np.random.Generator, size: int, frozen_prob: float
    ) -> list[str]:
        shortest = 2 * (size - 1)
        if shortest > self.max_turns:
            raise ConfigError(
                f"size={size} needs at least {shortest} moves, but max_turns="
                f"{self.max_turns}. Set max_turns={2 * shortest}, or a smaller size."
            )
        for _ in range(_MAX_DRAWS):
            ice = np.where(rng.random((size, size)) < frozen_prob, "F", "H")
            ice[0, 0], ice[-1, -1] = "S", "G"
            rows = ["".join(row) for row in ice]
            moves = _distances_to_goal(rows).get((0, 0))
            reachable = moves is not None and moves <= self.max_turns
            if reachable and in_split("\n".join(rows), self.split):
                return rows
        raise ConfigError(
            f"No solvable {self.split} map found in {_MAX_DRAWS} draws with size="
            f"{size}, frozen_prob={frozen_prob}. Choose frozen_prob between 0.6 and "
            "0.95."
        )

    def _position(self) -> Cell:
        return divmod(int(self._lake.s), len(self.map))

    def _grid(self) -> str:
        cells = [[_SYMBOLS[cell] for cell in row] for row in self.map]
        row, column = self._position()
        cells[row][column] = "P"
        return "\n".join(" ".join(line) for line in cells)

    def _surroundings(self) -> str:
        """Return the position and the moves to list, as text."""
        row, column = self._position()
        lists = [
            f"{word} {' '.join(m)}" for word, m in self._listed_moves().items() if m
        ]
        return ", ".join([f"row {row + 1} column {column + 1}", *lists])

    def _listed_moves(self) -> dict[str, list[str]]:
        here = self._position()
        goal = [m for m in MOVES if self._cell(m) == "G"]
        ice = [m for m in MOVES if self._cell(m) in "SF"]
        if self.slippery:
            safe = [m for m in MOVES if "H" not in map(self._cell, _slides(m))]
            return {"goal": goal, "safe": safe} if safe else {"goal": goal, "ice": ice}
        new = [m for m in ice if neighbour(here, m) not in self._seen]
        if goal or new:
            return {"goal": goal, "ice": new}
        if len(self._trail) > 1:
            back = [m for m in ice if neighbour(here, m) == self._trail[-2]]
            return {"back": back or ice}
        return {"back": ice}

    def _arrive(self) -> None:
        """Record the current cell and the path that led there."""
        here = self._position()
        if here in self._trail:
            del self._trail[self._trail.index(here) + 1 :]
        elif not self._trail or here in {neighbour(self._trail[-1], m) for m in MOVES}:
            self._trail.append(here)
        self._seen.add(here)

    def _cell(self, move: str) -> str:
        """Return the map's letter one move away, "#" outside."""
        row, column = neighbour(self._position(), move)
        size = len(self.map)
        inside = 0 <= row < size and 0 <= column < size
        return self.map[row][column] if inside else "#"

    def _value_table(self) -> np.ndarray:
        """Return success probabilities by turns left and state [H + 1, states]."""
        if self._values is None:
            states = len(self.map) ** 2
            values = np.zeros((self.max_turns + 1, states))
            # Bellman's equation with a finite horizon; values[0] is 0.
            for turns_left in range(1, self.max_turns + 1):
                later = values[turns_left - 1]
                for state in range(states):
                    values[turns_left, state] = max(self._action_values(state, later))
            self._values = values
        return self._values

    def _action_values(self, state: int, later: np.ndarray) -> list[float]:
        """Return the success probability of each action, given the later values."""
        return [
            sum(
                chance * (reward + (0.0 if done else later[following]))
                for chance, following, reward, done in outcomes
            )
            for outcomes in self._lake.P[state].values()
        ]


def _slides(move: str) -> list[str]:
    """Return the possible directions of a move on slippery ice."""
    moves = list(MOVES)
    at = moves.index(move)
    return [moves[(at + turn) % 4] for turn in (-1, 0, 1)]


def _distances_to_goal(rows: list[str]) -> dict[Cell, int]:
    size = len(rows)
    solid = {(r, c) for r in range(size) for c in range(size) if rows[r][c] != "H"}
    return distances((size - 1, size - 1), solid)


def mean_optimal_value(
    env_config: dict[str, Any] | None = None,
    *,
    seeds: Iterable[int] = range(100),
    split: str = "test",
) -> float:
    """Return the mean of :meth:`FrozenLake.optimal_value` over the maps of ``seeds``.

    This is the best success rate that any policy can reach, e.g. to plot beside a
    learning curve.

    Args:
        env_config: Options of the environment.
        seeds: Episode seeds, one map each.
        split: ``"train"`` or ``"test"`` maps.
    """
    env = FrozenLake(env_config)
    values = []
    for seed in seeds:
        env.reset(seed=seed, options={"split": split})
        values.append(env.optimal_value())
    return float(np.mean(values))
