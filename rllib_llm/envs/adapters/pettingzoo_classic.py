"""Adapter of PettingZoo's classic board and card games to text environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pettingzoo
from pettingzoo.env_registry.exceptions import FailedToImport

from rllib_llm.envs.adapters.text_game import TextGame
from rllib_llm.envs.adapters.words import find_word, list_words
from rllib_llm.envs.registry import register_text_env
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean

# Maximum size of a vector that a prompt shows as numbers.
_MOST_NUMBERS = 1024


@register_text_env("pettingzoo_classic-v0")
class PettingZooGame(TextGame):
    """A turn-based PettingZoo game with discrete actions, selected by ``game``.

    Tic-tac-toe, Connect Four, rock-paper-scissors and Leduc hold'em are described in
    words. For any other game, observations are shown as numbers and actions are named
    by their index. Agents have PettingZoo's names.

    Args:
        env_config: ``game`` (a classic game, e.g. ``"tictactoe"``, or a full id such
            as ``"classic/tictactoe-v3"``), ``game_options`` (its keywords), ``rules``
            (replaces the rules line; empty for none), and the options of
            :class:`TextGame`.
    """

    _OPTIONS: ClassVar[dict[str, Any]] = {
        **TextGame._OPTIONS,
        "game": "tictactoe",
        "game_options": {},
        "rules": None,
    }
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "pettingzoo"}

    def _load(self, options: dict[str, Any]) -> list[str]:
        name = _full_name(options["game"])
        try:
            self.game = pettingzoo.make("aec", name, **options["game_options"])
        except FailedToImport as error:
            raise MissingExtraError.for_extra(
                "pettingzoo[classic]", "classic"
            ) from error
        except TypeError as error:
            raise ConfigError(
                f"game={options['game']!r} does not accept game_options="
                f"{options['game_options']!r}: {error}. Correct game_options."
            ) from error
        agents = list(self.game.possible_agents)
        actions = self.game.action_space(agents[0])
        if not isinstance(actions, gym.spaces.Discrete):
            raise ConfigError(
                f"game={options['game']!r} has the action space {actions}; only "
                "Discrete actions can be named. Choose another game."
            )
        short = name.split("/")[-1].split("-v")[0]
        if short not in _DESCRIPTIONS:
            _require_few_numbers(self.game.observation_space(agents[0]), short)
        rules, words, self._view = _DESCRIPTIONS.get(short, (f"{short}.", (), _numbers))
        self._rules = rules if options["rules"] is None else options["rules"]
        self._words = words or tuple(map(str, range(int(actions.n))))
        return agents

    def _begin(self, rng: np.random.Generator) -> None:
        self.game.reset(seed=int(rng.integers(2**31)))
        self._has_moved: set[str] = set()

    def _next_agent(self) -> str | None:
        game = self.game
        while game.agents and game.terminations[game.agent_selection]:
            game.step(None)  # an agent that is out; the others may play on
        return game.agent_selection if game.agents else None

    def _is_cut(self) -> bool:
        return super()._is_cut() or any(self.game.truncations.values())

    def _prompt(self, agent: str) -> str:
        shown = self._view(_array(self.game.observe(agent)))
        words = [self._words[action] for action in self._legal(agent)]
        rules = "" if agent in self._has_moved else self._rules
        self._has_moved.add(agent)
        shown += ("\n" if "\n" in shown else " ") + f"{list_words(words)}?"
        return f"{rules}\n{shown}" if rules else shown

    def _hint(self, agent: str) -> str:
        words = [self._words[action] for action in self._legal(agent)]
        return f"Not legal. Answer with {list_words(words)}."

    def _move(self, agent: str, text: str) -> dict[str, float] | None:
        action = find_word(text, self._words)
        if action is None or action not in self._legal(agent):
            return None
        self.game.step(action)
        return {name: float(reward) for name, reward in self.game.rewards.items()}

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any legal word."""
        return self._words[int(rng.choice(self._legal(agent)))]

    def close(self) -> None:
        """Close PettingZoo's environment."""
        self.game.close()

    def _legal(self, agent: str) -> list[int]:
        observation = self.game.observe(agent)
        mask = self.game.infos[agent].get("action_mask")
        if isinstance(observation, dict):
            mask = observation.get("action_mask", mask)
        if mask is None:
            return list(range(len(self._words)))
        return np.flatnonzero(mask).tolist()


def _full_name(game: str) -> str:
    """Return the id of the newest version of a classic game, or a full id itself."""
    names = list(pettingzoo.aec_registry)
    versions = [name for name in names if name.startswith(f"classic/{game}-v")]
    if versions:
        return max(versions, key=lambda name: int(name.rpartition("-v")[2]))
    if game not in names:
        short = [n.removeprefix("classic/").rpartition("-v")[0] for n in names]
        raise ConfigError(
            f"Unknown PettingZoo game={game!r}. {did_you_mean(game, short)}"
        )
    return game


def _array(observation: object) -> np.ndarray:
    if isinstance(observation, dict):
        observation = observation["observation"]
    return np.asarray(observation)


def _board(planes: np.ndarray, empty: Callable[[int, int], str]) -> str:
    """Return two planes [rows, columns, 2] as text, own marks (x) first."""
    rows, columns, _ = planes.shape
    return "\n".join(
        " ".join(
            "x" if planes[r, c, 0] else "o" if planes[r, c, 1] else empty(r, c)
            for c in range(columns)
        )
        for r in range(rows)
    )


def _tictactoe(planes: np.ndarray) -> str:
    return "you are x\n" + _board(planes, lambda r, c: str(3 * r + c + 1))


def _connect_four(planes: np.ndarray) -> str:
    columns = " ".join(str(c + 1) for c in range(planes.shape[1]))
    return f"you are x\n{columns}\n" + _board(planes, lambda r, c: ".")


def _rock_paper_scissors(move: np.ndarray) -> str:
    moves = ("rock", "paper", "scissors", "none")
    return f"the other's last move: {moves[int(move)]}."


def _leduc(bits: np.ndarray) -> str:
    # Hand, public card, own chips, the other's chips: 3 + 3 + 15 + 15 bits.
    hand, board, chips, other = np.split(bits, [3, 6, 21])
    card = "JQK"[int(hand.argmax())]
    shared = "JQK"[int(board.argmax())] if board.any() else "none"
    return (
        f"card {card}, board {shared}, chips {chips.argmax()} against {other.argmax()}."
    )


def _require_few_numbers(space: gym.Space, game: str) -> None:
    if isinstance(space, gym.spaces.Dict):
        space = space["observation"]
    size = int(np.prod(space.shape))
    if size > _MOST_NUMBERS:
        raise ConfigError(
            f"game={game!r} has observations of {size} numbers; this adapter shows at "
            f"most {_MOST_NUMBERS}. Use the adapter of OpenSpiel, which describes "
            "many such games in words."
        )


def _numbers(array: np.ndarray) -> str:
    """Return any observation: the indices of ones if all are 0 or 1, else numbers."""
    if array.ndim == 1 and np.isin(array, (0, 1)).all():
        return f"on: {' '.join(map(str, np.flatnonzero(array))) or 'none'}."
    return " ".join(f"{value:g}" for value in array.ravel().astype(float))


# Rules, words of the actions (empty: their indices), view of the observation.
_DESCRIPTIONS: dict[str, tuple[str, tuple[str, ...], Callable[[np.ndarray], str]]] = {
    "tictactoe": (
        "Tic-tac-toe: three in a line win. Answer with a free cell.",
        tuple("123456789"),
        _tictactoe,
    ),
    "connect_four": (
        "Connect Four: four in a line win. Answer with a column.",
        tuple("1234567"),
        _connect_four,
    ),
    "rps": (
        "Rock-paper-scissors, many rounds.",
        ("rock", "paper", "scissors"),
        _rock_paper_scissors,
    ),
    "leduc_holdem": (
        "Leduc hold'em: cards J, Q, K, two of each; a pair with the board wins, else "
        "the higher card.",
        ("call", "raise", "fold", "check"),
        _leduc,
    ),
}
