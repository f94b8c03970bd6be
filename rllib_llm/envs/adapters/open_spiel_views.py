"""Views of OpenSpiel states: short texts of the information that a player has.

A view shows only information from the player's own information state or observation
string, so that hidden information cannot leak. :data:`VIEWS` holds short views of small
games; :class:`GenericView` serves all other games.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyspiel

_RANKS = "JQKA"


class View(Protocol):
    """Rules, view and words of one game.

    Attributes:
        rules: The rules in one line.
        question: End of a short prompt; None for the list of legal words.
    """

    rules: str
    question: str | None

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return the information of ``player``, as one or a few lines."""

    def words(self, state: pyspiel.State, player: int) -> tuple[list[int], list[str]]:
        """Return the actions that can be named, legal or not, and their words."""

    def word(self, state: pyspiel.State, player: int, action: int) -> str:
        """Return the word of one action."""


class GenericView:
    """OpenSpiel's own strings.

    Games of perfect information show the observation string, others the information
    state string, which contains everything that the player has seen.

    Args:
        game: The ``pyspiel.Game``.

    Raises:
        ValueError: If the game has no text for its states.
    """

    question: str | None = None

    def __init__(self, game: pyspiel.Game):
        kind = game.get_type()
        self.rules = f"{kind.long_name} for {game.num_players()} players."
        perfect = kind.information == type(kind.information).PERFECT_INFORMATION
        by_state = kind.provides_information_state_string
        by_observation = kind.provides_observation_string
        if by_observation and (perfect or not by_state):
            self._show = "observation_string"
        elif by_state:
            self._show = "information_state_string"
        else:
            raise ValueError("has no text for its states")

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return OpenSpiel's string for ``player``."""
        return getattr(state, self._show)(player).strip() or "The game begins."

    def words(self, state: pyspiel.State, player: int) -> tuple[list[int], list[str]]:
        """Return the legal actions and OpenSpiel's names of them."""
        actions = state.legal_actions(player)
        return actions, [self.word(state, player, action) for action in actions]

    def word(self, state: pyspiel.State, player: int, action: int) -> str:
        """Return OpenSpiel's name of an action, without spaces at its ends."""
        return state.action_to_string(player, action).strip(" ,")


class _FixedWords:
    """A view whose actions have the same words in every state."""

    question: str | None = None
    _words: Sequence[str]

    def words(self, state: pyspiel.State, player: int) -> tuple[list[int], list[str]]:
        """Return all actions of the game: naming an illegal one is an error."""
        return list(range(len(self._words))), list(self._words)

    def word(self, state: pyspiel.State, player: int, action: int) -> str:
        """Return the word of one action."""
        return self._words[action]


class KuhnView(_FixedWords):
    """Kuhn poker: the card and the bets so far."""

    _words = ("pass", "bet")

    def __init__(self, game: pyspiel.Game):
        self._players = game.num_players()
        cards = ", ".join(_rank(i, self._players) for i in range(self._players + 1))
        self.rules = (
            f"Kuhn poker. Cards from low to high: {cards}; each player holds one and "
            "pays 1. "  # language: rules of poker
            "Pass, or bet 1 more; after a bet, pass folds and bet calls. The "
            "highest card among those who did not fold wins."
        )

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return e.g. ``"card K, history: pass bet."``."""
        seen = state.information_state_string(player)
        match = re.fullmatch(r"(\d+)([pb]*)", seen)
        assert match is not None, f"OpenSpiel describes Kuhn poker as {seen!r}."
        card, bets = match.groups()
        history = " ".join({"p": "pass", "b": "bet"}[bet] for bet in bets) or "none"
        return f"card {_rank(int(card), self._players)}, history: {history}."


class LeducView(_FixedWords):
    """Leduc poker: ranks of the cards, and the bets of both rounds."""

    _words = ("fold", "call", "raise")
    _bets = {"0": "fold", "1": "call", "2": "raise"}

    def __init__(self, game: pyspiel.Game):
        self._players = game.num_players()
        cards = ", ".join(_rank(i, self._players) for i in range(self._players + 1))
        self.rules = (
            f"Leduc poker. Cards from low to high: {cards}, two of each; each player "
            "holds one and pays 1. "  # language: rules of poker
            "Two rounds of betting, raises of 2, then 4, two in "
            "a round; between them a card for all is shown. A pair with it wins, else "
            "the higher card."
        )

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return e.g. ``"card K, board -, bets: call raise ."``."""
        text = state.information_state_string(player)
        seen = dict(re.findall(r"\[(\w+): ?([^\]]*)\]", text))
        card = _rank(int(seen["Private"]) // 2, self._players)
        shared = seen.get("Public")
        board = _rank(int(shared) // 2, self._players) if shared else "none"
        rounds = [
            " ".join(self._bets[bet] for bet in seen[key].split())
            for key in ("Round1", "Round2")
        ]
        return f"card {card}, board {board}, bets: {' / '.join(rounds).strip()}."


class LiarsDiceView(GenericView):
    """Liar's dice: own dice and the bids so far."""

    def __init__(self, game: pyspiel.Game):
        super().__init__(game)
        self.rules = (
            "Liar's dice. Each player sees only the own dice. Bid quantity-face over "
            "all dice (6 is wild), higher than the last bid, or say liar. If the last "
            "bid was too high the one who made it loses, else the one who doubted it."
        )

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return e.g. ``"dice 5, bids: 1-2 2-1."``."""
        dice, _, bids = state.information_state_string(player).partition(" ")
        return f"dice {dice}, bids: {bids or 'none'}."

    def word(self, state: pyspiel.State, player: int, action: int) -> str:
        """Return e.g. ``"2-6"`` or ``"liar"``."""
        return super().word(state, player, action).lower()


class TicTacToeView(_FixedWords):
    """Tic-tac-toe: the board, with the numbers of the free cells."""

    question = "move?"  # the board shows which cells are free
    _words = tuple("123456789")

    def __init__(self, game: pyspiel.Game):
        self.rules = "Tic-tac-toe: three in a line win. Answer with a free cell."

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return e.g. ``"you are x"`` above the board."""
        cells = state.observation_string(player).replace("\n", "")
        shown = [str(i + 1) if c == "." else c for i, c in enumerate(cells)]
        rows = "\n".join(" ".join(shown[i : i + 3]) for i in (0, 3, 6))
        return f"you are {'xo'[player]}\n{rows}"


class ConnectFourView(_FixedWords):
    """Connect Four: the board under the numbers of its columns."""

    question = "move?"

    def __init__(self, game: pyspiel.Game):
        columns = game.num_distinct_actions()
        self._words = tuple(str(i + 1) for i in range(columns))
        self.rules = "Connect Four: four in a line win. Answer with a column."

    def show(self, state: pyspiel.State, player: int) -> str:
        """Return e.g. ``"you are x"``, column numbers and the board."""
        board = state.observation_string(player).strip()
        return f"you are {'xo'[player]}\n{''.join(self._words)}\n{board}"


# For each game's default parameters, with any number of players.
VIEWS: dict[str, type] = {
    "kuhn_poker": KuhnView,
    "leduc_poker": LeducView,
    "liars_dice": LiarsDiceView,
    "tic_tac_toe": TicTacToeView,
    "connect_four": ConnectFourView,
}


def _rank(index: int, players: int) -> str:
    """Return a card's name: J, Q, K (A), or a number in larger decks."""
    return _RANKS[index] if players < len(_RANKS) else str(index + 1)
