"""Adapter of the levels of BabyAI and MiniGrid, described in text."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.adapters.words import find_word, list_words
from rllib_llm.envs.parsing import require_choice
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean

# MiniGrid's actions, in its order; only some MiniGrid tasks need the last one.
ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
_FAMILIES = ("BabyAI-", "MiniGrid-")
_REWARDS = ("success", "minigrid")
# Levels that the bot does not solve, according to its own documentation.
_BEYOND_THE_BOT = (
    "BabyAI-PutNextS5N2Carrying-v0",
    "BabyAI-PutNextS6N3Carrying-v0",
    "BabyAI-PutNextS7N4Carrying-v0",
    "BabyAI-KeyInBox-v0",
)
_MOST_DRAWS = 1_000
_REJECTED = "Sampling rejected:"
_ONE_AT_A_TIME = threading.Lock()


@register_text_env("babyai-v0")
class BabyAI(TextEnv):
    """Follow an instruction in a grid of rooms with a partial view.

    BabyAI (Chevalier-Boisvert et al. 2019, arXiv:1810.08272), described in the style of
    BabyAI-Text (Carta et al. 2023, arXiv:2302.02662): the things in view and their
    distances in steps. Levels, rules and the expert are MiniGrid's own.

    Raises:
        MissingExtraError: If MiniGrid is not installed.
    """

    max_turns = 64

    def __init__(self, env_config: dict[str, Any] | None = None):
        import_minigrid()
        super().__init__(env_config)
        self.format_hint = f"Say {list_words(ACTIONS[:6])}."
        self._level = ""

    def start(
        self,
        rng: np.random.Generator,
        level: str = "BabyAI-GoToLocal-v0",
        reward: str = "success",
    ) -> str:
        """Draw an instance of a level.

        Args:
            rng: Generator of the instance.
            level: An id of BabyAI or MiniGrid.
            reward: ``"success"``: 1 at the goal; ``"minigrid"``: MiniGrid's own, which
                is 1 - 0.9 * steps / the level's limit.
        """
        self._uses_minigrid_reward = (
            require_choice("reward", reward, _REWARDS) == "minigrid"
        )
        if level != self._level:
            self.grid_env = _make(level)
            self._level = level
        self._draw(rng)
        self._bot: Any = None
        self._advice: int | None = None
        return f"Goal: {self.grid_env.mission}.\n{self._seen()} {self._question()}"

    def parse(self, completion: str) -> int | None:
        """Return the action that is named last."""
        return find_word(completion, self._actions())

    def reply(self, action: int) -> TurnResult:
        """Act; an impossible action changes nothing."""
        _, minigrid_reward, terminated, truncated, _ = self.grid_env.step(action)
        reached = bool(terminated and minigrid_reward > 0)
        if self._bot is not None and not (terminated or truncated):
            self._ask_bot(action)
        text = self._seen()
        if terminated:
            text = "You reached the goal." if reached else "You failed."
        reward = (
            float(minigrid_reward) if self._uses_minigrid_reward else float(reached)
        )
        # The level's own limit also ends episodes: without the goal, they are failures.
        success = reached if terminated or truncated else None
        return TurnResult(text, reward, terminated, truncated, success=success)

    def admissible_actions(self) -> list[str]:
        """Return all actions, including those without effect."""
        return list(self._actions())

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any action."""
        return self._actions()[int(rng.integers(len(self._actions())))]

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the action of MiniGrid's bot, which recovers from mistakes.

        If the bot has no advice, return "turn left".

        Raises:
            NotImplementedError: For levels that the bot does not solve.
        """
        if self._level in _BEYOND_THE_BOT or not self._level.startswith("BabyAI-"):
            raise NotImplementedError(f"{self._level} has no scripted expert.")
        if self._bot is None:
            self._new_bot()
        return ACTIONS[0 if self._advice is None else self._advice]

    # Helpers --------------------------------------------------------------------

    def _draw(self, rng: np.random.Generator) -> None:
        """Reset the level until its instance belongs to the split."""
        for _ in range(_MOST_DRAWS):
            with _without_rejections():
                self.grid_env.reset(seed=int(rng.integers(2**31)))
            if in_split(f"{self.grid_env.mission} {self.grid_env.hash()}", self.split):
                return
        raise ConfigError(
            f"level={self._level!r} returned no instance of the split {self.split!r} "
            f"in {_MOST_DRAWS} draws, because it has too few. Choose another level."
        )

    def _actions(self) -> tuple[str, ...]:
        return ACTIONS[:6] if self._level.startswith("BabyAI-") else ACTIONS

    def _question(self) -> str:
        return f"Say {list_words(self._actions())}."

    def _seen(self) -> str:
        things = describe(*self.grid_env.gen_obs_grid())
        text = f"You see {', '.join(things)}." if things else "You see nothing."
        if self.grid_env.carrying is not None:
            text += f" You carry {_name(self.grid_env.carrying)}."
        return text

    def _new_bot(self) -> None:
        from minigrid.utils.baby_ai_bot import BabyAIBot

        self._bot = BabyAIBot(self.grid_env)
        self._ask_bot(None)

    def _ask_bot(self, action: int | None) -> None:
        """Pass the last action to the bot, and store its next advice."""
        self._advice = None
        # The bot raises if a mistake leaves nothing to do, e.g. after emptying a box.
        with contextlib.suppress(AssertionError, _disappeared_box()):
            advice = int(self._bot.replan(action))
            self._advice = advice if advice < len(self._actions()) else None


def describe(grid: Any, visible: np.ndarray) -> list[str]:
    """Return descriptions of the view: walls ahead and beside first, then things.

    Args:
        grid: The view, with the agent in the middle of its last row, looking up.
        visible: Mask of the visible cells [columns, rows].

    Returns:
        Phrases such as ``"a red ball 2 steps forward and 1 step left"``.
    """
    column, row = grid.width // 2, grid.height - 1
    cells = {
        (i, j): grid.get(i, j)
        for j in range(grid.height - 1, -1, -1)
        for i in range(grid.width)
        if visible[i, j] and grid.get(i, j) is not None and (i, j) != (column, row)
    }
    lines = (
        [(column, j) for j in range(row - 1, -1, -1)],
        [(i, row) for i in range(column - 1, -1, -1)],
        [(i, row) for i in range(column + 1, grid.width)],
    )
    walls = [
        next((at for at in line if at in cells and cells[at].type == "wall"), None)
        for line in lines
    ]
    things = [at for at, cell in cells.items() if cell.type not in ("wall", "floor")]
    return [
        f"{_name(cells[at])} {_where(row - at[1], column - at[0])}"
        for at in [*filter(None, walls), *things]
    ]


def import_minigrid() -> Any:
    """Import MiniGrid, which registers its levels with Gymnasium.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import minigrid
    except ModuleNotFoundError as error:
        if error.name not in ("minigrid", "pygame"):
            raise
        raise MissingExtraError.for_extra("minigrid", "babyai") from error
    return minigrid


def _make(level: str) -> Any:
    levels = [name for name in gym.registry if name.startswith(_FAMILIES)]
    if level not in levels:
        raise ConfigError(
            f"Unknown BabyAI or MiniGrid level={level!r}. "
            + did_you_mean(str(level), levels)
        )
    return gym.make(level, disable_env_checker=True).unwrapped


@contextlib.contextmanager
def _without_rejections() -> Iterator[None]:
    """Suppress MiniGrid's messages on instances that it draws again."""
    # stdout is global, so concurrent redirections would not be restored correctly.
    with _ONE_AT_A_TIME:
        captured = io.StringIO()
        with contextlib.redirect_stdout(captured):
            yield
    # Output of other threads in the meantime was captured, too: print it.
    others = [n for n in captured.getvalue().splitlines(True) if _REJECTED not in n]
    sys.stdout.write("".join(others))


def _name(cell: Any) -> str:
    words = [cell.color, cell.type]
    if cell.type == "wall":
        words = ["wall"]
    elif cell.type == "door":
        state = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
        words.insert(0, state)
    article = "an" if words[0][0] in "aeiou" else "a"
    return " ".join([article, *words])


def _where(forward: int, left: int) -> str:
    sides = [(forward, "forward")] if forward else []
    if left:
        sides.append((abs(left), "left" if left > 0 else "right"))
    return " and ".join(f"{n} step{'s' * (n > 1)} {side}" for n, side in sides)


def _disappeared_box() -> type[Exception]:
    from minigrid.utils.baby_ai_bot import DisappearedBoxError

    return DisappearedBoxError
