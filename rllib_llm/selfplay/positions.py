"""Exact best responses in games of perfect information, position by position.

A policy that reads nothing but the position has one distribution for each. The best
responses to it are then a dynamic programme over positions, of which there are far
fewer than histories: tic-tac-toe has 5 478, and 549 946 histories.
"""

from __future__ import annotations

import dataclasses
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from rllib_llm.envs.adapters.open_spiel_text import GameText
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.selfplay.queries import Query

Key = tuple[int, str]
"""Who is to move, and OpenSpiel's text of the whole state."""


@dataclasses.dataclass(slots=True)
class Position:
    """A place in the game, however it came about.

    Attributes:
        query: What the player to move is asked; None at chance and at the end.
        player: Who that is; negative at chance and at the end.
        children: The position after each legal action, or each outcome of chance.
        chances: Probabilities of these outcomes; empty elsewhere.
        returns: Of each player at the end; empty elsewhere.
    """

    query: Query | None
    player: int
    children: tuple[Key, ...] = ()
    chances: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()


def is_by_position(game: Any) -> bool:
    """Return whether players see all there is, chance told apart from the state."""
    kind = game.get_type()
    is_seen = kind.information == type(kind.information).PERFECT_INFORMATION
    return is_seen and kind.chance_mode != type(kind.chance_mode).SAMPLED_STOCHASTIC


def positions(text: GameText, max_positions: int = 200_000) -> dict[Key, Position]:
    """Return every position, children before their parents; the last is the start.

    States with one text are taken for one position, as in OpenSpiel's own value
    iteration.

    Args:
        text: The game as it is told, of perfect information.
        max_positions: Refuse games with more.

    Raises:
        ConfigError: If there are more, or the game may come back to a position.
        EnvContractError: If histories of one position are told, or continue,
            differently.
    """
    found: dict[Key, Position] = {}
    root = text.game.new_initial_state()
    stack = [(root, frozenset[int]())]
    while stack:
        state, moved = stack.pop()
        key, player = _key(state), state.current_player()
        position, after = _look(text, state, moved)
        if key in found:
            if found[key] != position:
                raise EnvContractError(
                    f"{text.game}: two histories of the position {key[1]!r} differ in "
                    f"what is told or may follow: {found[key]} and {position}. Its "
                    "exploitability cannot be measured by position."
                )
            continue
        found[key] = position
        if len(found) > max_positions:
            raise ConfigError(
                f"{text.game} has more than {max_positions} positions. Choose a "
                "smaller game, or compare policies by playing."
            )
        acted = moved | {player} if player >= 0 else moved
        stack += [(child, acted) for child in after]
    graph = {key: position.children for key, position in found.items()}
    try:
        return {key: found[key] for key in TopologicalSorter(graph).static_order()}
    except CycleError as error:
        raise ConfigError(
            f"{text.game} may come back to a position, so that it cannot be solved "
            "position by position. Choose another game."
        ) from error


def _key(state: Any) -> Key:
    return state.current_player(), str(state)


def _look(
    text: GameText, state: Any, moved: frozenset[int]
) -> tuple[Position, list[Any]]:
    """Return the state's position, and the states that may follow."""
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
    """Return each player's expected return and best response.

    By backward induction, all other players following the policy.

    Args:
        places: Of :func:`positions`.
        answers: Probabilities of the legal actions, by decision.

    Returns:
        The return at the start, that of the best response, both [players]; what the
        best responses say in every decision, the first word where several are as good.
    """
    values: dict[Key, np.ndarray] = {}
    words: dict[Query, str] = {}
    best: dict[Key, np.ndarray] = {}
    for key, place in places.items():
        if not place.children:
            values[key] = best[key] = np.asarray(place.returns)
            continue
        probs = place.chances if place.query is None else answers[place.query]
        after = np.array([best[child] for child in place.children])
        values[key] = np.asarray(probs) @ [values[c] for c in place.children]
        best[key] = np.asarray(probs) @ after
        if place.query is not None:
            choice = int(after[:, place.player].argmax())
            best[key][place.player] = after[choice, place.player]
            words[place.query] = place.query.words[choice]
    start = next(reversed(places))
    return values[start], best[start], words
