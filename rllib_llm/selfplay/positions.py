"""Exact best responses in games of perfect information, by dynamic programming.

A policy that reads the current position only has one distribution per position. The
best responses to it are then a dynamic programme over positions, of which there are
far fewer than histories: tic-tac-toe has 5,478 positions and 549,946 histories.
"""

from __future__ import annotations

import dataclasses
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.envs.adapters.open_spiel_text import GameText
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.selfplay.queries import Query

if TYPE_CHECKING:
    import pyspiel

Key = tuple[int, str]
"""The player to move, and OpenSpiel's text of the whole state."""


@dataclasses.dataclass(slots=True)
class Position:
    """Position of a game, independent of its history.

    Attributes:
        query: Decision of the player to move; None at chance nodes and at the end.
        player: The player to move; negative at chance nodes and at the end.
        children: The position after each legal action, or each chance outcome.
        chances: Probabilities of the chance outcomes; empty at other positions.
        returns: Return of each player at the end; empty at other positions.
    """

    query: Query | None
    player: int
    children: tuple[Key, ...] = ()
    chances: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()


def is_by_position(game: pyspiel.Game) -> bool:
    """Return whether a game has perfect information and explicit chance nodes."""
    kind = game.get_type()
    is_seen = kind.information == type(kind.information).PERFECT_INFORMATION
    return is_seen and kind.chance_mode != type(kind.chance_mode).SAMPLED_STOCHASTIC


def positions(text: GameText, max_positions: int = 200_000) -> dict[Key, Position]:
    """Return every position, children before their parents; the last is the start.

    States with equal texts count as one position, as in OpenSpiel's value iteration.

    Args:
        text: A game of perfect information with its texts.
        max_positions: Maximum number of positions.

    Raises:
        ConfigError: If there are more, or a position can occur twice in a game.
        EnvContractError: If histories of one position differ in their text or their
            continuation.
    """
    by_key: dict[Key, Position] = {}
    root = text.game.new_initial_state()
    # With the players that have moved, because a player's first prompt has the rules.
    stack = [(root, frozenset[int]())]
    while stack:
        state, moved = stack.pop()
        key, player = _key(state), state.current_player()
        position, after = _look(text, state, moved)
        if key in by_key:
            if by_key[key] != position:
                raise EnvContractError(
                    f"{text.game}: two histories of the position {key[1]!r} differ in "
                    f"their text or continuation: {by_key[key]} and {position}. Its "
                    "exploitability cannot be computed by position; use "
                    "history='append'."
                )
            continue
        by_key[key] = position
        if len(by_key) > max_positions:
            raise ConfigError(
                f"{text.game} has more than {max_positions} positions. Choose a "
                "smaller game, or compare policies by evaluation."
            )
        acted = moved | {player} if player >= 0 else moved
        stack += [(child, acted) for child in after]
    graph = {key: position.children for key, position in by_key.items()}
    try:
        return {key: by_key[key] for key in TopologicalSorter(graph).static_order()}
    except CycleError as error:
        raise ConfigError(
            f"{text.game} may return to an earlier position, so it cannot be solved by "
            "backward induction. Choose another game."
        ) from error


def _key(state: pyspiel.State) -> Key:
    return state.current_player(), str(state)


def _look(
    text: GameText, state: pyspiel.State, moved: frozenset[int]
) -> tuple[Position, list[Any]]:
    """Return the state's position, and the next states."""
    player = state.current_player()
    if state.is_terminal():
        return Position(None, player, returns=tuple(state.returns())), []
    query, actions = None, state.legal_actions()
    chances: tuple[float, ...] = ()
    if state.is_chance_node():
        actions, chances = zip(*state.chance_outcomes(), strict=True)
    else:
        prompt = text.prompt(state, player, first=player not in moved)
        query = Query((prompt,), tuple(text.legal_words(state, player)))
    after = [state.child(action) for action in actions]
    return Position(query, player, tuple(map(_key, after)), chances), after


def best_responses(
    places: dict[Key, Position],
    answers: dict[Query, list[float]],
) -> tuple[np.ndarray, np.ndarray, dict[Query, str]]:
    """Return each player's expected return and best response, by backward induction.

    Args:
        places: The result of :func:`positions`.
        answers: Probabilities of the legal actions, by decision.

    Returns:
        The policy's return at the start [players]; the return of each player's best
        response while all others follow the policy [players]; and the best response's
        word of every decision, the first among equally good ones.
    """
    values: dict[Key, np.ndarray] = {}
    words: dict[Query, str] = {}
    best: dict[Key, np.ndarray] = {}
    for key, place in places.items():
        if not place.children:
            values[key] = best[key] = np.asarray(place.returns)
            continue
        # Children come before their parents, so their values are already computed.
        probs = place.chances if place.query is None else answers[place.query]
        after = np.array([best[child] for child in place.children])
        values[key] = np.asarray(probs) @ [values[c] for c in place.children]
        # Expected values for the players that do not move; the mover takes the maximum
        # of its own.
        best[key] = np.asarray(probs) @ after
        if place.query is not None:
            choice = int(after[:, place.player].argmax())
            best[key][place.player] = after[choice, place.player]
            words[place.query] = place.query.words[choice]
    start = next(reversed(places))
    return values[start], best[start], words
