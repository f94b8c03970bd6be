"""Adapter of the turn-based games of OpenSpiel to multi-agent text environments."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rllib_llm.envs.adapters.open_spiel_views import VIEWS, GenericView, View
from rllib_llm.envs.adapters.text_game import TextGame
from rllib_llm.envs.adapters.words import find_word, list_words
from rllib_llm.envs.parsing import require_choice, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean

if TYPE_CHECKING:
    import pyspiel

_STYLES = ("full", "short")
# SPIRAL's rewards for invalid moves, as multiples of the largest loss and win.
_FORFEIT, _WALKOVER = 1.5, 0.5
_MCTS_SIMULATIONS = 1000
_MCTS_MEMORY_MB = 100
_UCT_C = 2.0
# Number of CFR+ iterations that makes the average policy hardly exploitable.
_CFR_ITERATIONS = {"kuhn_poker": 1000, "leduc_poker": 100}
_SOLVING = threading.Lock()


class GameText:
    """Text of an OpenSpiel game: a pure function of state and player.

    Args:
        name: A game of OpenSpiel, e.g. ``"kuhn_poker"``.
        parameters: Parameters of the game.
        style: ``"full"`` starts with the rules and the player's number, ``"short"`` is
            the bare view and the legal words, for very small models.
        rules: Replaces the rules line of the style ``"full"``; empty for none.

    Raises:
        ConfigError: If the game does not exist, or has no text for its states.
        MissingExtraError: If OpenSpiel is not installed.
    """

    def __init__(
        self,
        name: str,
        parameters: dict[str, Any] | None = None,
        style: str = "full",
        rules: str | None = None,
    ):
        self.game = load_game(name, parameters or {})
        self.style = require_choice("style", style, _STYLES)
        self._view = _view_of(self.game)
        self._rules = self._view.rules if rules is None else rules

    def prompt(self, state: pyspiel.State, player: int, *, first: bool) -> str:
        """Return the prompt of ``player`` for a decision.

        Args:
            state: A state in which ``player`` decides.
            player: Index of the player.
            first: Whether this is the player's first decision of the game.
        """
        shown = self._view.show(state, player)
        words = self.legal_words(state, player)
        shown += "\n" if "\n" in shown else " "
        if self.style == "short":
            return shown + (self._view.question or f"{list_words(words)}?")
        ask = f"{shown}Answer with {list_words(words)}."
        if not first:
            return ask
        agent = f"You are player {player + 1} of {self.game.num_players()}."
        return f"{self._rules} {agent}\n{ask}".strip()

    def legal_words(self, state: pyspiel.State, player: int) -> list[str]:
        """Return the words of the legal actions, in OpenSpiel's order."""
        return [self._view.word(state, player, a) for a in state.legal_actions(player)]

    def read(self, state: pyspiel.State, player: int, text: str) -> int | None:
        """Return the legal action that ``text`` names last, or None."""
        actions, words = self._view.words(state, player)
        index = find_word(text, words)
        if index is None or actions[index] not in state.legal_actions(player):
            return None
        return actions[index]


@register_text_env("open_spiel-v0")
class OpenSpielGame(TextGame):
    """Any turn-based game of OpenSpiel, selected by ``game``.

    Chance is drawn from the environment's own seed. Every player reads only its own
    information state or observation. Rewards are OpenSpiel's, at the time they arise.

    Experts: Monte-Carlo tree search for games of perfect information, the average
    policy of CFR+ for Kuhn and Leduc poker.

    Args:
        env_config: ``game``, ``game_options`` (OpenSpiel's parameters), ``style``,
            ``rules``, ``random_opening`` (maximum number of random legal moves before
            agents play, drawn anew for each game, so that agents meet positions that
            good play avoids), and the options of :class:`TextGame`.
            ``max_turns=None`` leaves the length to the game. If the rewards for invalid
            answers are None, they are SPIRAL's in units of the game: 1.5 times its
            largest loss, and half its largest win in constant-sum games; otherwise 0
            for the others, and in common-reward games the same for all.
    """

    _OPTIONS: ClassVar[dict[str, Any]] = {
        **TextGame._OPTIONS,
        "max_turns": None,
        "invalid_action_reward": None,
        "invalid_opponent_reward": None,
        "game": "kuhn_poker",
        "game_options": {},
        "style": "full",
        "rules": None,
        "random_opening": 0,
    }
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "open_spiel"}
    _game = ""

    def _load(self, options: dict[str, Any]) -> list[str]:
        name = self._game or options["game"]
        keys = ("style", "rules")
        self.game_text = GameText(
            name, options["game_options"], **{key: options[key] for key in keys}
        )
        longest = self.game_text.game.max_game_length()
        require_int("random_opening", options["random_opening"], 0, longest)
        utility = self.game_text.game.get_type().utility
        self.has_winner = utility != type(utility).IDENTICAL
        return [f"player_{i}" for i in range(self.game_text.game.num_players())]

    def _longest_game(self) -> int:
        answers = 1 + self._options["error_allowance"]
        return self.game_text.game.max_game_length() * answers

    def _invalid_rewards(self) -> tuple[float, float]:
        offender, others = super()._invalid_rewards()
        game = self.game_text.game
        if offender is None:
            # A positive minimum is not multiplied, because that would reward forfeits.
            offender = min(_FORFEIT * game.min_utility(), game.min_utility())
        if others is None:
            utility = game.get_type().utility
            others = {
                type(utility).ZERO_SUM: _WALKOVER * game.max_utility(),
                type(utility).CONSTANT_SUM: _WALKOVER * game.max_utility(),
                type(utility).IDENTICAL: offender,
            }.get(utility, 0.0)
        return offender, others

    def _begin(self, rng: np.random.Generator) -> None:
        self.state = _new_state(self.game_text.game, rng)
        self._has_moved: set[str] = set()
        self._play_chance(rng)
        self._play_opening(rng)
        self._granted = self.state.returns()

    def _next_agent(self) -> str | None:
        if self.state.is_terminal():
            return None
        return self.possible_agents[self.state.current_player()]

    def _prompt(self, agent: str) -> str:
        first = agent not in self._has_moved
        self._has_moved.add(agent)
        return self.game_text.prompt(self.state, self._player(agent), first=first)

    def _hint(self, agent: str) -> str:
        words = self.game_text.legal_words(self.state, self._player(agent))
        return f"Not legal. Answer with {list_words(words)}."

    def _move(self, agent: str, text: str) -> dict[str, float] | None:
        action = self.game_text.read(self.state, self._player(agent), text)
        if action is None:
            return None
        self.state.apply_action(action)
        self._play_chance(self._rng)
        before, self._granted = self._granted, self.state.returns()
        # returns() are cumulative. The differences include what chance events after the
        # move decided.
        rewards = [now - then for now, then in zip(self._granted, before, strict=True)]
        return dict(zip(self.possible_agents, rewards, strict=True))

    def _admissible(self, agent: str) -> list[str]:
        return self.game_text.legal_words(self.state, self._player(agent))

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any legal word."""
        words = self._admissible(agent)
        return words[int(rng.integers(len(words)))]

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a good move (see the class).

        Raises:
            NotImplementedError: For other games of imperfect information.
        """
        game = self.game_text.game
        kind = game.get_type()
        if kind.information == type(kind.information).PERFECT_INFORMATION:
            action = _search(game, self.state, rng)
        elif kind.short_name in _CFR_ITERATIONS:
            with _SOLVING:  # threads that ask meanwhile wait, and find it in the cache
                solution = _solve(str(game))
            policy = solution.action_probabilities(self.state)
            action = _draw(list(policy.items()), rng)
        else:
            raise NotImplementedError(f"{kind.short_name} has no scripted expert.")
        player = self._player(agent)
        legal = self.state.legal_actions(player)
        return self.game_text.legal_words(self.state, player)[legal.index(action)]

    def _player(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _play_opening(self, rng: np.random.Generator) -> None:
        """Make random moves that do not end the game."""
        most = self._options["random_opening"]
        for _ in range(int(rng.integers(most + 1)) if most else 0):
            moves = self.state.legal_actions()
            state = self.state.child(moves[int(rng.integers(len(moves)))])
            while state.is_chance_node():
                state.apply_action(_draw(state.chance_outcomes(), rng))
            if state.is_terminal():
                return
            self.state = state

    def _play_chance(self, rng: np.random.Generator) -> None:
        while self.state.is_chance_node():
            self.state.apply_action(_draw(self.state.chance_outcomes(), rng))


_NAMED_OPTIONS = {k: v for k, v in OpenSpielGame._OPTIONS.items() if k != "game"}


@register_text_env("open_spiel/kuhn_poker-v0")
class KuhnPoker(OpenSpielGame):
    """OpenSpiel's Kuhn poker: three cards, one bet; 12 information states."""

    _OPTIONS = _NAMED_OPTIONS
    _game = "kuhn_poker"


@register_text_env("open_spiel/leduc_poker-v0")
class LeducPoker(OpenSpielGame):
    """OpenSpiel's Leduc poker: six cards, two rounds of betting."""

    _OPTIONS = _NAMED_OPTIONS
    _game = "leduc_poker"


@register_text_env("open_spiel/liars_dice-v0")
class LiarsDice(OpenSpielGame):
    """OpenSpiel's liar's dice: bid on dice that are partly hidden from each player."""

    _OPTIONS = _NAMED_OPTIONS
    _game = "liars_dice"


@register_text_env("open_spiel/tic_tac_toe-v0")
class TicTacToe(OpenSpielGame):
    """OpenSpiel's tic-tac-toe."""

    _OPTIONS = _NAMED_OPTIONS
    _game = "tic_tac_toe"


@register_text_env("open_spiel/connect_four-v0")
class ConnectFour(OpenSpielGame):
    """OpenSpiel's Connect Four."""

    _OPTIONS = _NAMED_OPTIONS
    _game = "connect_four"


def import_pyspiel() -> Any:
    """Import OpenSpiel.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import pyspiel
    except ModuleNotFoundError as error:
        raise MissingExtraError.for_extra("open_spiel", "games") from error
    return pyspiel


def load_game(name: str, parameters: dict[str, Any]) -> Any:
    """Return a turn-based game of OpenSpiel.

    Raises:
        ConfigError: If the game or a parameter does not exist, or moves are
            simultaneous.
        MissingExtraError: If OpenSpiel is not installed.
    """
    pyspiel = import_pyspiel()
    if "(" not in name and name not in pyspiel.registered_names():
        raise ConfigError(
            f"Unknown OpenSpiel game={name!r}. "
            + did_you_mean(name, pyspiel.registered_names())
        )
    try:
        # OpenSpiel ignores parameters inside of the name if it gets a dictionary.
        given = (parameters,) if parameters else ()
        game = pyspiel.load_game(name, *given)
    except pyspiel.SpielError as error:
        raise ConfigError(
            f"OpenSpiel cannot load game={name!r} with game_options={parameters!r}: "
            f"{str(error).splitlines()[0]}. Correct game_options."
        ) from error
    dynamics = game.get_type().dynamics
    if dynamics != type(dynamics).SEQUENTIAL:
        call = name if "(" in name else f"{name}()"
        raise ConfigError(
            f"game={name!r} has simultaneous moves, which this adapter does not "
            f"support. Use game='turn_based_simultaneous_game(game={call})'."
        )
    return game


def _view_of(game: pyspiel.Game) -> View:
    """Return the short view of a game if there is one, else the generic one."""
    kind = game.get_type()
    view = VIEWS.get(kind.short_name)
    if view is not None and _parameters(game) == _parameters(
        import_pyspiel().load_game(kind.short_name)
    ):
        return view(game)
    try:
        return GenericView(game)
    except ValueError as error:
        raise ConfigError(
            f"game={kind.short_name!r} {error}, so a language model cannot play it. "
            "Choose another game."
        ) from error


def _parameters(game: pyspiel.Game) -> dict[str, Any]:
    return {k: v for k, v in game.get_parameters().items() if k != "players"}


def _new_state(game: pyspiel.Game, rng: np.random.Generator) -> Any:
    """Return the initial state; games with their own random generator get a seed."""
    kind = game.get_type()
    if kind.chance_mode == type(kind.chance_mode).SAMPLED_STOCHASTIC:
        seed = {"rng_seed": int(rng.integers(2**31))}
        parameters = {**game.get_parameters(), **seed}
        game = import_pyspiel().load_game(kind.short_name, parameters)
    return game.new_initial_state()


def _draw(chances: list[tuple[int, float]], rng: np.random.Generator) -> int:
    actions, probabilities = zip(*chances, strict=True)
    weights = np.asarray(probabilities)
    return int(actions[rng.choice(len(actions), p=weights / weights.sum())])


def _search(game: pyspiel.Game, state: pyspiel.State, rng: np.random.Generator) -> int:
    """Return the move of a Monte-Carlo tree search with random playouts."""
    pyspiel = import_pyspiel()
    seed = int(rng.integers(2**31))
    playouts = pyspiel.RandomRolloutEvaluator(1, seed)
    limits = (_MCTS_SIMULATIONS, _MCTS_MEMORY_MB)
    bot = pyspiel.MCTSBot(game, playouts, _UCT_C, *limits, True, seed, False)
    return bot.step(state)


@functools.lru_cache(maxsize=8)
def _solve(name: str) -> Any:
    """Return the average policy of CFR+ (Tammelin 2014, arXiv:1407.5042)."""
    pyspiel = import_pyspiel()
    game = pyspiel.load_game(name)
    solver = pyspiel.CFRPlusSolver(game)
    for _ in range(_CFR_ITERATIONS[game.get_type().short_name]):
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()
