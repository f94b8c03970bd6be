"""Sokoban in text, on levels generated backwards from the solution."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.grid import (
    MOVE_FORMAT,
    MOVES,
    Cell,
    distances,
    neighbour,
    parse_move,
)
from rllib_llm.envs.parsing import require_choice, require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError

_MAX_DRAWS = 2_000


@dataclasses.dataclass(frozen=True)
class Level:
    """A state of the game.

    Attributes:
        size: Number of rows and columns inside of the outer walls.
        floor: All cells except walls.
        targets: Target cells of the boxes.
        boxes: Cells with a box.
        player: Cell of the player.
    """

    size: int
    floor: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        """True if every box is on a target."""
        return self.boxes == self.targets

    def after(self, move: str) -> Level:
        """Return the state after a move; a blocked move changes nothing."""
        ahead = neighbour(self.player, move)
        if ahead not in self.floor:
            return self
        if ahead not in self.boxes:
            return dataclasses.replace(self, player=ahead)
        beyond = neighbour(ahead, move)
        if beyond not in self.floor or beyond in self.boxes:
            return self
        boxes = self.boxes - {ahead} | {beyond}
        return dataclasses.replace(self, player=ahead, boxes=boxes)

    def __str__(self) -> str:
        cells = range(self.size)
        return "\n".join(" ".join(self._symbol((r, c)) for c in cells) for r in cells)

    @property
    def directions(self) -> str:
        """The player's position, and in words the way to boxes, targets and walls."""
        row, column = self.player
        items = [f"P {row + 1} {column + 1}"]
        for box in sorted(self.boxes):
            items.append(f"X {_offset(self.player, box)}")
            items += [f"T {_offset(box, t)} of X" for t in sorted(self.targets)]
        cells = {divmod(i, self.size) for i in range(self.size**2)}
        items += [f"# {_offset(self.player, w)}" for w in sorted(cells - self.floor)]
        return ", ".join(items)

    def _symbol(self, cell: Cell) -> str:
        if cell not in self.floor:
            return "#"
        on_target = cell in self.targets
        if cell == self.player:
            return "+" if on_target else "P"
        if cell in self.boxes:
            return "*" if on_target else "X"
        return "T" if on_target else "_"


def _offset(start: Cell, end: Cell) -> str:
    """Return e.g. "2 up 1 left", or "here"."""
    down, right = end[0] - start[0], end[1] - start[1]
    parts = [(down, "down", "up"), (right, "right", "left")]
    return " ".join(f"{abs(n)} {p if n > 0 else m}" for n, p, m in parts if n) or "here"


class SokobanLevels(TextEnv):
    """Moves, rewards and levels of Sokoban; subclasses show the level."""

    max_turns = 12
    format_hint = MOVE_FORMAT

    def begin(
        self,
        rng: np.random.Generator,
        size: int,
        boxes: int,
        walls: int,
        depth: int,
        box_reward: float,
        step_reward: float,
    ) -> None:
        """Draw a level; see :meth:`Sokoban.start`."""
        require_int("size", size, 3, 10)
        require_int("boxes", boxes, 1, 4)
        require_int("walls", walls, 0, 20)
        require_int("depth", depth, 1, 50)
        self.box_reward = require_float("box_reward", box_reward, -100, 100)
        self.step_reward = require_float("step_reward", step_reward, -100, 100)
        self.level = self._draw(rng, size, boxes, walls, depth)

    def parse(self, completion: str) -> str | None:
        """Return the last ``go <direction>``."""
        return parse_move(completion)

    def reply(self, action: str) -> TurnResult:
        """Move, push, and show the level."""
        before, self.level = self.level, self.level.after(action)
        placed = len(self.level.boxes & self.level.targets)
        gained = placed - len(before.boxes & before.targets)
        solved = self.level.solved
        return TurnResult(
            "Solved!" if solved else self._show(),
            reward=float(solved) + gained * self.box_reward + self.step_reward,
            terminated=solved,
            success=solved,
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the next move of a shortest solution, or any move without one."""
        plan = solve(self.level)
        return f"go {plan[0]}" if plan else self.random_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any move."""
        return f"go {list(MOVES)[int(rng.integers(len(MOVES)))]}"

    def admissible_actions(self) -> list[str]:
        """Return the four moves."""
        return [f"go {move}" for move in MOVES]

    def _show(self) -> str:
        return str(self.level)

    def _draw(
        self, rng: np.random.Generator, size: int, boxes: int, walls: int, depth: int
    ) -> Level:
        if walls + boxes >= size**2:
            raise ConfigError(
                f"walls={walls} and boxes={boxes} leave no room for the player in "
                f"size={size}. Raise size."
            )
        for _ in range(_MAX_DRAWS):
            level, moves = draw_level(
                rng, size=size, boxes=boxes, walls=walls, depth=depth
            )
            # No box on a target at the start, so that each one has to be pushed.
            fits = moves <= self.max_turns and not level.boxes & level.targets
            if fits and in_split(str(level), self.split):
                return level
        raise ConfigError(
            f"No {self.split} level found in {_MAX_DRAWS} draws with size={size}, "
            f"boxes={boxes}, walls={walls}, depth={depth} and a solution within "
            f"max_turns={self.max_turns}. Raise max_turns, or lower depth, walls or "
            "boxes."
        )


@register_text_env("sokoban-v0")
class Sokoban(SokobanLevels):
    """Push all boxes onto targets, one move per turn. Return 1 if solved.

    Levels always have a solution of at most ``max_turns`` moves, no box starts on a
    target, and levels are split into train and test by their hash. A box in a corner
    cannot be moved again; the episode then runs until ``max_turns``. The outer walls
    are not shown, because they would more than double the text.
    """

    def start(
        self,
        rng: np.random.Generator,
        size: int = 4,
        boxes: int = 1,
        walls: int = 0,
        depth: int = 3,
        box_reward: float = 0.0,
        step_reward: float = 0.0,
        observation: str = "grid",
    ) -> str:
        """Draw a level.

        Args:
            rng: Generator of the level.
            size: Number of rows and columns inside of the outer walls, in [3, 10].
            boxes: Number of boxes, in [1, 4].
            walls: Number of inner walls, in [0, 20].
            depth: Number of pulls backwards from the solution, in [1, 50]. More pulls
                make longer solutions.
            box_reward: Reward for each box pushed onto a target, subtracted when it
                leaves. RAGEN (arXiv:2504.20073) uses 1, with ``step_reward`` -0.1.
            step_reward: Reward of every valid move.
            observation: ``"grid"``, a picture of the level, or ``"directions"``: the
                way from the player to each box and from there to each target, in words,
                which is shorter and easier for small models.
        """
        self.observation = require_choice(
            "observation", observation, ("grid", "directions")
        )
        self.begin(rng, size, boxes, walls, depth, box_reward, step_reward)
        legend = "P you, X box, T target"
        if self.observation == "grid":
            legend += ", _ floor, + you on target"
            legend += ", * box on target" if boxes > 1 else ""
        legend += ", # wall" if walls else ""
        return f"{self._show()}\n{legend}. Push X to T. {MOVE_FORMAT}"

    def _show(self) -> str:
        in_grid = self.observation == "grid"
        return str(self.level) if in_grid else self.level.directions


def draw_level(
    rng: np.random.Generator, *, size: int, boxes: int, walls: int, depth: int
) -> tuple[Level, int]:
    """Draw a level by pulling boxes away from their targets.

    A pull is a push in reverse, so that retracing the pulls solves the level.

    Args:
        rng: Generator of the level.
        size: Number of rows and columns inside of the outer walls.
        boxes: Number of boxes.
        walls: Number of inner walls.
        depth: Number of pulls, fewer if the boxes get stuck.

    Returns:
        The level, which may have boxes on targets, and the number of moves of the
        retraced solution: an upper bound on the shortest solution.
    """
    inner = [(r, c) for r in range(size) for c in range(size)]
    cells = [inner[i] for i in rng.permutation(len(inner))]
    targets = frozenset(cells[walls : walls + boxes])
    floor = frozenset(cells[walls:])
    level = Level(size, floor, targets, targets, cells[walls + boxes])
    moves = 0
    for pull in range(depth):
        choices = list(_pulls(level))
        if not choices:
            break
        walked, level = choices[int(rng.integers(len(choices)))]
        # Retracing ends with the last push, so the walk before the first pull is not
        # part of the solution.
        moves += 1 + (walked if pull else 0)
    # The player can walk from any of these cells to the place of the last pull.
    reachable = distances(level.player, floor - level.boxes)
    player = sorted(reachable)[int(rng.integers(len(reachable)))]
    return dataclasses.replace(level, player=player), moves + reachable[player]


def _pulls(level: Level) -> Iterator[tuple[int, Level]]:
    """Yield every possible pull: the moves to reach it, and the level after it."""
    free = level.floor - level.boxes
    reachable = distances(level.player, free)
    for box in sorted(level.boxes):
        for move in MOVES:
            hand = neighbour(box, move)
            behind = neighbour(hand, move)
            if hand in reachable and behind in free:
                boxes = level.boxes - {box} | {hand}
                after = dataclasses.replace(level, player=behind, boxes=boxes)
                yield reachable[hand], after


def solve(level: Level) -> list[str] | None:
    """Return a shortest solution by breadth-first search, or None without one."""
    plans: dict[Level, list[str]] = {level: []}
    queue = deque([level])
    while queue:
        current = queue.popleft()
        if current.solved:
            return plans[current]
        for move in MOVES:
            following = current.after(move)
            if following not in plans:
                plans[following] = [*plans[current], move]
                queue.append(following)
    return None
