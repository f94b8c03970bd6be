"""Path checker: a planner without sight of the walls, and a checker who sees them."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.games.paths import cells_of, first_hit, place, shortest_path
from rllib_llm.envs.grid import Cell
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.errors import ConfigError

_MAX_DRAWS = 2_000


@register_text_env("path_checker-v0")
class PathChecker(MultiAgentTextEnv):
    """Agree on a path to the far corner. Return 1 for each if it is free of walls.

    The planner proposes a whole path without knowing the walls. The checker sees them
    and says ok, which ends the game, or names one wall, truthfully or not. Instances
    are split into train and test by the hash of the walls.
    """

    possible_agents = ["planner_0", "checker_0"]
    max_turns = 16
    format_hint = (
        "Please answer as 'path right down', inside the grid and up to the goal, or as "
        "'ok' or 'wall 1 2'."
    )
    _path = re.compile(
        r"\bpath((?:[ \t]+(?:left|down|right|up)){1,40})\b", re.IGNORECASE
    )
    _check = re.compile(r"\b(?:(ok)|wall[ \t]+([0-9])[ \t]+([0-9]))\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        size: int = 4,
        walls: int = 3,
        attempts: int = 4,
    ) -> None:
        """Place the walls so that the experts need at most ``attempts`` paths.

        Args:
            rng: Generator of the walls.
            size: Number of rows and columns, in [3, 9].
            walls: Number of walls, in [1, 20].
            attempts: Maximum number of proposed paths, in [1, 8].
        """
        self.size = require_int("size", size, 3, 9)
        require_int("walls", walls, 1, 20)
        self.attempts = require_int("attempts", attempts, 1, 8)
        self.goal = (size - 1, size - 1)
        every = [(r, c) for r in range(size) for c in range(size)]
        self.cells = set(every)
        inner = every[1:-1]
        for _ in range(_MAX_DRAWS if walls < len(inner) else 0):
            picked = rng.choice(len(inner), size=walls, replace=False)
            self.walls = {inner[i] for i in picked}
            if in_split(f"{size} {sorted(self.walls)}", self.split) and self._solvable:
                break
        else:
            raise ConfigError(
                f"No {self.split} instance found in {_MAX_DRAWS} draws with size="
                f"{size}, walls={walls}, attempts={attempts}. Lower walls, or raise "
                "attempts."
            )
        self.named: list[Cell] = []
        self.path: list[str] = []
        self.proposed = 0

    def prompt_for(self, agent: str) -> str:
        """Return size and last reply to the planner, the walls to the checker."""
        if agent == "planner_0":
            if self.named:
                return f"checker_0: wall {place(self.named[-1])}. Another path?"
            return (
                f"From 1 1 to {place(self.goal)}, walls are hidden. Say path, then "
                "left, down, right or up for every move."
            )
        proposal = f"planner_0: path {' '.join(self.path)}. ok, or which wall?"
        if self.proposed > 1:
            return proposal
        walls = ", ".join(place(w) for w in sorted(self.walls))
        return f"Walls (row column): {walls}. {proposal}"

    def parse(self, agent: str, text: str) -> list[str] | Cell | str | None:
        """Return a path inside the grid to the goal, or the checker's reply."""
        if agent == "planner_0":
            match = last_match(self._path, text)
            moves = match.group(1).lower().split() if match else []
            cells = cells_of(moves)
            inside = self.cells.issuperset(cells) and cells[-1] == self.goal
            return moves if inside else None
        match = last_match(self._check, text)
        if match is None or match.group(1):
            return match and "ok"
        cell = int(match.group(2)) - 1, int(match.group(3)) - 1
        return cell if cell in self.cells else None

    def apply(self, agent: str, action: list[str] | Cell | str) -> Outcome | None:
        """Store the proposal, or apply the checker's reply."""
        if isinstance(action, list):
            self.path, self.proposed = action, self.proposed + 1
            return None
        metrics = {"attempts": float(self.proposed)}
        if isinstance(action, str):  # "ok"
            free = first_hit(self.path, self.walls) is None
            rewards = dict.fromkeys(self.possible_agents, float(free))
            return Outcome(rewards, terminated=True, success=free, metrics=metrics)
        self.named.append(action)
        if self.proposed < self.attempts:
            return None
        return Outcome(terminated=True, success=False, metrics=metrics)

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a path around the named walls, or the first wall on the path."""
        if agent == "planner_0":
            return f"path {' '.join(self._plan(set(self.named)))}"
        hit = first_hit(self.path, self.walls)
        return "ok" if hit is None else f"wall {place(hit)}"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a random path right and down; ok with probability 1/2, or any wall."""
        if agent == "planner_0":
            moves = ["right", "down"] * (self.size - 1)
            return f"path {' '.join(rng.permutation(moves))}"
        if rng.random() < 0.5:
            return "ok"
        return f"wall {rng.integers(1, self.size + 1)} {rng.integers(1, self.size + 1)}"

    @property
    def _solvable(self) -> bool:
        """True if the two experts find a free path within the attempts."""
        named: set[Cell] = set()
        for _ in range(self.attempts):
            hit = first_hit(self._plan(named), self.walls)
            if hit is None:
                return True
            named.add(hit)
        return False

    def _plan(self, named: set[Cell]) -> list[str]:
        """Return a shortest path around ``named``, or through it if there is none."""
        around = shortest_path(self.goal, self.cells - named)
        return around or shortest_path(self.goal, self.cells) or []
