"""Adapter of the games of TextArena to multi-agent text environments."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import numpy as np

from rllib_llm.envs.adapters.text_game import TextGame
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.random_states import IsolatedRandomState
from rllib_llm.envs.registry import register_text_env
from rllib_llm.errors import (
    ConfigError,
    EnvContractError,
    MissingExtraError,
    did_you_mean,
)

# Disables the library's own limit of invalid moves: TextGame applies its limit.
_NO_LIMIT = 10**9


@register_text_env("text_arena-v0")
class TextArenaGame(TextGame):
    """Any offline game of TextArena, selected by ``game``.

    The adapter corrects some behaviour of the library. Its observation wrappers keep
    the whole history, even of earlier games: here each episode has a fresh game without
    wrappers, and observations hold new messages only. It draws from Python's global
    random state: here every environment has its own, swapped in for one call at a time.
    Some rewards are strings, and some games never end (``max_turns``). Invalid moves
    are handled by :class:`TextGame`.

    Players keep their numbers; the first one to move may be random. Rewards come at the
    end of a game, none if it is truncated. The adapter has neither experts nor random
    policies, because the library does not list legal moves; a subclass may write them
    with :attr:`textarena_game`.

    Args:
        env_config: ``game`` (an id of TextArena), ``num_players``, ``game_options``
            (keywords of the game), ``rules`` (replaces the game's own first message),
            and the options of :class:`TextGame`.
    """

    _OPTIONS: ClassVar[dict[str, Any]] = {
        **TextGame._OPTIONS,
        "game": "TicTacToe-v0",
        "game_options": {},
        "num_players": 2,
        "rules": None,
    }
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "text_arena"}

    @property
    def textarena_game(self) -> Any:
        """TextArena's own game without wrappers, for scripted policies."""
        return self._game

    def _load(self, options: dict[str, Any]) -> list[str]:
        players = require_int("num_players", options["num_players"], 1, 100)
        library, game = _import_text_arena(), options["game"]
        registry = library.envs.registration.ENV_REGISTRY
        if game not in registry:
            raise ConfigError(
                f"Unknown TextArena game={game!r}. {did_you_mean(game, registry)}"
            )
        self.has_winner = players > 1
        self._begin(np.random.default_rng(0))  # fails early if it cannot be played
        return [f"player_{i}" for i in range(players)]

    def _begin(self, rng: np.random.Generator) -> None:
        options, seed = self._options, int(rng.integers(2**31))
        self._random_state = IsolatedRandomState(seed)
        with self._random_state.swapped_in():
            try:
                env = _import_text_arena().make(
                    options["game"], **options["game_options"]
                )
                self._game, self._brackets = _without_wrappers(env)
                self._game.reset(num_players=options["num_players"], seed=seed)
            except Exception as error:  # games may raise anything
                raise ConfigError(
                    f"TextArena cannot play game={options['game']!r} with "
                    f"num_players={options['num_players']} and game_options="
                    f"{options['game_options']!r} here: {error!r}. Choose another game "
                    "or other options."
                ) from error
        if hasattr(self._game.state, "error_allowance"):
            self._game.state.error_allowance = _NO_LIMIT
        self._done = False

    def _next_agent(self) -> str | None:
        if self._done:
            return None
        player = self._game.state.current_player_id
        if player not in range(self._options["num_players"]):
            raise EnvContractError(
                f"TextArena expects player {player!r} to move, but num_players="
                f"{self._options['num_players']}. Set num_players to a number that "
                f"{self._options['game']!r} supports."
            )
        return f"player_{player}"

    def _prompt(self, agent: str) -> str:
        return self._news() or "Your turn."

    def _hint(self, agent: str) -> str:
        return self._news() or "Not a valid move."

    def _news(self) -> str:
        """Return the messages to the player to move since its last turn."""
        with self._random_state.swapped_in():
            player, messages = self._game.get_observation()
        kinds = _import_text_arena().ObservationType
        names = self._game.state.role_mapping
        fields = [_fields(message, kinds) for message in messages]
        boards = [
            i for i, (_, kind, _) in enumerate(fields) if kind == kinds.GAME_BOARD
        ]
        lines = []
        for i, (sender, kind, text) in enumerate(fields):
            is_echo = sender == player and kind == kinds.PLAYER_ACTION
            old_board = kind == kinds.GAME_BOARD and i != boards[-1]
            if is_echo or old_board:
                continue
            if kind == kinds.PROMPT and self._options["rules"] is not None:
                text = self._options["rules"]
            lines.append(text if sender < 0 else f"{names.get(sender, sender)}: {text}")
        return "\n".join(filter(None, map(str.strip, lines)))

    def _move(self, agent: str, text: str) -> dict[str, float] | None:
        if self._brackets and "[" not in text and "]" not in text:
            text = f"[{text}]"
        state = self._game.state
        errors = getattr(state, "error_count", 0)
        with self._random_state.swapped_in():
            try:
                self._done, _ = self._game.step(action=text)
            except ValueError:
                return None  # games convert parts of the text to numbers
            if not self._done:
                invalid = getattr(state, "error_count", 0) > errors
                return None if invalid else {}
            rewards, details = self._game.close()
        return {
            f"player_{player}": _number(reward, details.get(player, {}))
            for player, reward in (rewards or {}).items()
        }


def _import_text_arena() -> Any:
    try:
        import textarena
    except ModuleNotFoundError as error:
        if error.name != "textarena":
            raise
        raise MissingExtraError.for_extra("textarena", "games") from error
    return textarena


def _without_wrappers(env: object) -> tuple[Any, bool]:
    """Return the bare game, and whether its answers need brackets."""
    library = _import_text_arena()
    brackets = False
    while isinstance(env, library.Wrapper):
        brackets |= isinstance(env, library.wrappers.ActionFormattingWrapper)
        env = env.env
    return env, brackets


def _fields(message: tuple[Any, Any, Any], kinds: type) -> tuple[int, Any, str]:
    """Return sender, kind and text of a message; some games swap them."""
    by_type: dict[str, Any] = {
        name: part
        for name, wanted in (("sender", int), ("kind", kinds), ("text", str))
        for part in message
        if isinstance(part, wanted)
    }
    return by_type["sender"], by_type["kind"], by_type["text"]


def _number(reward: object, details: dict[str, Any]) -> float:
    """Return a reward as a number; some games swap it with its reason."""
    value: Any
    for value in (reward, details.get("reason")):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    raise EnvContractError(
        f"TextArena returned the reward {reward!r} with {details!r}; it must be a "
        "number. Choose another game."
    )
