"""Evolution of filtering strategies: MAP-Elites with islands, mutations by rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.filters.pass_matrix import (
    Strategy,
    agreement,
    kept_solutions,
    scores,
)

_MOST_ROUNDS = 4
_KEPT_BINS = 4
# Largest value and standard deviation of a step of each real gene; the least is 0.
_STEPS = {
    "power": (4.0, 0.5),
    "separation": (1.0, 0.2),
    "consensus": (2.0, 0.3),
    "least_best": (1.0, 0.15),
    "least_spread": (1.0, 0.1),
}
_GENES = ("rounds", "standardise", *_STEPS)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A seed problem.

    Attributes:
        passes: Whether solution i passes test j; at least two solutions and a test.
            bool [M, N]
        right: Whether solution i passes the checked tests. bool [M]
    """

    passes: np.ndarray
    right: np.ndarray


@dataclasses.dataclass(frozen=True)
class Elite:
    """A strategy in an archive.

    Attributes:
        strategy: The strategy.
        agreement: Mean agreement on the seed problems that it keeps; 0 if none.
        kept: Share of the seed problems that it keeps.
    """

    strategy: Strategy
    agreement: float
    kept: float

    @property
    def cell(self) -> tuple[int, int]:
        """Its cell: rounds, and a quarter of the share of problems that it keeps."""
        return self.strategy.rounds, min(int(self.kept * _KEPT_BINS), _KEPT_BINS - 1)


Archive = dict[tuple[int, int], Elite]


def rate(strategy: Strategy, problems: Sequence[Problem]) -> Elite:
    """Return a strategy with its agreement and its share of kept problems."""
    agreements = []
    for problem in problems:
        solutions, tests = scores(problem.passes, strategy)
        if kept_solutions(problem.passes, solutions, strategy).any():
            agreements.append(
                agreement(problem.passes, problem.right, solutions, tests)
            )
    mean = float(np.mean(agreements)) if agreements else 0.0
    return Elite(strategy, mean, len(agreements) / max(len(problems), 1))


def place(archive: Archive, elite: Elite) -> None:
    """Put a strategy into its cell if that is empty or holds one that agrees less."""
    holder = archive.get(elite.cell)
    if holder is None or elite.agreement > holder.agreement:
        archive[elite.cell] = elite


def mutated(strategy: Strategy, rng: np.random.Generator) -> Strategy:
    """Return a strategy of which one gene has changed: a rule in the LLM's place."""
    gene = _GENES[int(rng.integers(len(_GENES)))]
    if gene == "rounds":
        rounds = strategy.rounds + (1 if rng.random() < 0.5 else -1)
        rounds = min(max(rounds, 0), _MOST_ROUNDS)
        return dataclasses.replace(strategy, rounds=rounds)
    if gene == "standardise":
        return dataclasses.replace(strategy, standardise=not strategy.standardise)
    largest, std = _STEPS[gene]
    near = getattr(strategy, gene) + std * rng.standard_normal()
    # Half of the mutants leave the neighbourhood, where agreement is often flat.
    value = rng.uniform(0.0, largest) if rng.random() < 0.5 else near
    changed: Any = {gene: min(max(float(value), 0.0), largest)}
    return dataclasses.replace(strategy, **changed)


def evolve(
    islands: Sequence[Sequence[Strategy]],
    problems: Sequence[Problem],
    children: int,
    rng: np.random.Generator,
) -> list[list[Elite]]:
    """Return the archives of the islands after one generation.

    The strategies are rated anew, since the problems change; the initial one always
    takes part. Then the best of each island is offered to the next.

    Args:
        islands: Strategies of each island.
        problems: Seed problems.
        children: Mutants per island.
        rng: Generator of parents and mutations.
    """
    archives: list[Archive] = []
    for strategies in islands:
        archive: Archive = {}
        for strategy in (Strategy(), *strategies):
            place(archive, rate(strategy, problems))
        for _ in range(children):
            parents = list(archive.values())
            parent = parents[int(rng.integers(len(parents)))].strategy
            place(archive, rate(mutated(parent, rng), problems))
        archives.append(archive)
    travellers = [best(list(a.values()), 0.0) for a in archives]
    for number, traveller in enumerate(travellers):
        place(archives[(number + 1) % len(archives)], traveller)
    return [list(archive.values()) for archive in archives]


def best(elites: Sequence[Elite], least_kept: float) -> Elite:
    """Return the elite that agrees most among those that keep enough problems.

    Without one that keeps enough, the one that keeps most. Of equal ones the first.
    """
    enough = [e for e in elites if e.kept >= least_kept]
    rank: Callable[[Elite], tuple[float, float]] = (
        (lambda e: (e.agreement, e.kept)) if enough else lambda e: (e.kept, e.agreement)
    )
    return max(enough or elites, key=rank)
