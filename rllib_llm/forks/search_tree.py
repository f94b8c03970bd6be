"""Tree of turns for Monte-Carlo tree search: selection, expansion and backup.

A *place* is an observation that a policy is about to answer; its *turns* are the
distinct answers that were sampled there. Nothing here samples or steps anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(slots=True, eq=False)
class TreeTurn:
    """A turn of the tree.

    Attributes:
        reward: Reward of the environment for it.
        logp: Mean log-probability of its tokens, in nats; of several samples that were
            merged the highest.
        after: The place after it; None if it ended the episode.
        visits: Number of simulations that went through it (N).
        value: Mean or maximum of their discounted returns from this turn on (Q).
        data: The caller's record of it.
    """

    reward: float
    logp: float
    after: TreePlace | None
    visits: int = 0
    value: float = 0.0
    data: Any = None


@dataclasses.dataclass(slots=True, eq=False)
class TreePlace:
    """A place of the tree.

    Attributes:
        turns: Its distinct turns, by a key that equal ones share.
        num_sampled: Number of turns that were sampled here, equal ones included.
        data: The caller's record of it.
    """

    turns: dict[Hashable, TreeTurn] = dataclasses.field(default_factory=dict)
    num_sampled: int = 0
    data: Any = None

    @property
    def visits(self) -> int:
        """Number of simulations that went on from here: the sum over its turns."""
        return sum(turn.visits for turn in self.turns.values())

    def most_visited(self) -> TreeTurn:
        """Return the turn with the most visits; of several the one with the best Q."""
        return max(self.turns.values(), key=lambda turn: (turn.visits, turn.value))


@dataclasses.dataclass(frozen=True, slots=True)
class SampledTurn:
    """A turn of a sampled episode, to be added to a tree.

    Attributes:
        key: Key that equal turns of a place share.
        reward: Reward of the environment for it.
        logp: Mean log-probability of its tokens, in nats.
        is_last: Whether it ended the episode.
        data: The caller's record of it.
    """

    key: Hashable
    reward: float
    logp: float
    is_last: bool
    data: Any = None


Score = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Scores of a place's turns, from their values, visits and logps. [K]"""


def uct_scores(
    values: np.ndarray, visits: np.ndarray, logps: np.ndarray, *, exploration: float
) -> np.ndarray:
    """Return ``Q + c sqrt(ln N(s) / (1 + N(s, a)))`` with N(s) the sum of N(s, a).

    Args:
        values: Q of each turn. [K]
        visits: N of each turn, >= 1. [K]
        logps: Not read; the priors of :func:`puct_scores`. [K]
        exploration: c >= 0, in units of the return.
    """
    return values + exploration * np.sqrt(np.log(visits.sum()) / (1.0 + visits))


def puct_scores(
    values: np.ndarray, visits: np.ndarray, logps: np.ndarray, *, exploration: float
) -> np.ndarray:
    """Return ``Q + c P sqrt(N(s)) / (1 + N(s, a))``, P the softmax of the logps.

    Args:
        values: Q of each turn. [K]
        visits: N of each turn, >= 1. [K]
        logps: Mean log-probability of each turn's tokens, in nats. [K]
        exploration: c >= 0, in units of the return.
    """
    priors = np.exp(logps - logps.max())
    priors /= priors.sum()
    return values + exploration * priors * np.sqrt(visits.sum()) / (1.0 + visits)


def select(place: TreePlace, score: Score, width: int) -> list[TreeTurn]:
    """Return the turns from a place down to where the tree grows.

    At a place with fewer than ``width`` sampled turns the path ends: another turn is to
    be sampled there. Otherwise it goes on with the turn of the highest score; of equal
    ones with the first. It also ends with a turn that ended the episode.

    Args:
        place: The place to begin at.
        score: Scores of the turns of a place.
        width: Number of turns to sample at each place, >= 1.
    """
    path: list[TreeTurn] = []
    here: TreePlace | None = place
    while here is not None and here.num_sampled >= width:
        turns = list(here.turns.values())
        scores = score(
            np.array([turn.value for turn in turns]),
            np.array([turn.visits for turn in turns], np.float64),
            np.array([turn.logp for turn in turns]),
        )
        path.append(turns[int(np.argmax(scores))])
        here = path[-1].after
    return path


def add(place: TreePlace, sampled: Iterable[SampledTurn]) -> list[TreeTurn]:
    """Add the turns of an episode that was sampled from a place on.

    A turn whose key its place has already is merged with that one.

    Args:
        place: The place at which the first of them was sampled.
        sampled: The turns up to the end of the episode, in order.

    Returns:
        The tree's turns, to be backed up.
    """
    path: list[TreeTurn] = []
    here: TreePlace | None = place
    for new in sampled:
        assert here is not None, "Turns that end the episode have keys of their own."
        here.num_sampled += 1
        turn = here.turns.get(new.key)
        if turn is None:
            after = None if new.is_last else TreePlace(data=new.data)
            turn = TreeTurn(new.reward, new.logp, after, data=new.data)
            here.turns[new.key] = turn
        turn.logp = max(turn.logp, new.logp)
        path.append(turn)
        here = turn.after
    return path


SCORES = {"uct": uct_scores, "puct": puct_scores}
BACKUPS = ("mean", "max")


def backup(
    path: Sequence[TreeTurn], gamma: float, by: str = "mean", after: float = 0.0
) -> None:
    """Count one simulation: ``N += 1; Q += (G - Q) / N`` for each of its turns.

    Args:
        path: The turns of the simulation, up to the end of the episode, or to a place
            whose value is known.
        gamma: Discount per turn; G is the discounted return from each turn on.
        by: "mean" as above; "max": ``Q = max(Q, G)``.
        after: Value of the place after the last turn; 0 at the end of the episode.
    """
    to_go = after
    for turn in reversed(path):
        to_go = turn.reward + gamma * to_go
        turn.visits += 1
        if by == "mean" or turn.visits == 1:
            turn.value += (to_go - turn.value) / turn.visits
        else:
            turn.value = max(turn.value, to_go)
