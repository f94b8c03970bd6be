"""Solutions and tests that rate each other, as in EvoSyn (arXiv:2510.17928).

All solutions of a problem run on all its tests: the pass matrix. A strategy computes
scores of both from it, and keeps the best. The initial one is the paper's: solutions
that pass more tests are better, and tests that more solutions pass.
"""

from __future__ import annotations

import dataclasses

import numpy as np

_DECIMALS = 10  # of scores, so that equal ones are equal in whatever order they add up


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A filtering strategy; the defaults are the initial one.

    Attributes:
        rounds: Rounds in which solutions and tests weight each other.
        power: Exponent of the weights, >= 0.
        standardise: Whether weights are exponentials of scores in standard deviations.
        separation: Share of a test's score that is 4 v (1 - v), in [0, 1], with v the
            share of solutions that pass it: 0 if all or none do.
        consensus: Exponent, >= 0, of the share of solutions that pass the same tests;
            it multiplies a solution's score.
        least_best: Score of the best solution below which a problem is inconsistent.
        least_spread: Distance of the best solution from the worst up to which a problem
            is trivial.
    """

    rounds: int = 0
    power: float = 1.0
    standardise: bool = False
    separation: float = 0.0
    consensus: float = 0.0
    least_best: float = 0.0
    least_spread: float = 0.0


def scores(passes: np.ndarray, strategy: Strategy) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of solutions and tests, in [0, 1].

    ``s[i] = a[i]^c sum_j w[j] P[i, j] / sum_j w[j]`` and
    ``t[j] = (1 - d) sum_i u[i] P[i, j] / sum_i u[i] + d 4 v[j] (1 - v[j])``, with
    weights that are 1 at first and in each round powers of the scores before.

    Args:
        passes: Whether solution i passes test j; not empty. bool [M, N]
        strategy: The strategy.

    Returns:
        Scores of solutions [M] and of tests [N].
    """
    passes = np.asarray(passes, np.float64)
    passed = passes.mean(0)
    separates = 4.0 * passed * (1.0 - passed)
    same = (passes[:, None] == passes[None]).all(2)
    agreeing = same.mean(1) ** strategy.consensus
    share = strategy.separation
    of_solutions, of_tests = np.ones(len(passes)), np.ones(passes.shape[1])
    for number in range(strategy.rounds + 1):
        solutions = agreeing * (passes @ of_tests) / of_tests.sum()
        tests = (of_solutions @ passes) / of_solutions.sum()
        tests = (1.0 - share) * tests + share * separates
        if number < strategy.rounds:
            of_solutions = _weights(solutions, strategy)
            of_tests = _weights(tests, strategy)
    return np.round(solutions, _DECIMALS), np.round(tests, _DECIMALS)


def _weights(values: np.ndarray, strategy: Strategy) -> np.ndarray:
    """Return weights of scores; all 1 if they would all be 0."""
    if strategy.standardise:
        spread = values.std()
        # Differences by rounding alone are none.
        z = (values - values.mean()) / spread if spread > 1e-9 else 0.0 * values
        weights = np.exp(strategy.power * z)
    else:
        weights = values**strategy.power
    return weights if weights.sum() > 0 else np.ones_like(values)


def select(passes: np.ndarray, strategy: Strategy) -> tuple[np.ndarray, np.ndarray]:
    """Return which solutions and tests a strategy keeps; none of a dropped problem.

    Kept are the solutions of the best score and, of the tests that all of these pass,
    those of the best score. A problem is dropped if it is trivial or inconsistent, with
    fewer than two solutions or without a test, and if the kept solutions share no test.

    Args:
        passes: Whether solution i passes test j. bool [M, N]
        strategy: The strategy.

    Returns:
        Kept solutions, bool [M], and tests, bool [N].
    """
    nothing = np.zeros(passes.shape[0], bool), np.zeros(passes.shape[1], bool)
    if not is_comparable(passes):
        return nothing
    solutions, tests = scores(passes, strategy)
    kept = kept_solutions(passes, solutions, strategy)
    agree = passes[kept].all(0) & kept.any()
    if not agree.any():
        return nothing
    return kept, agree & (tests == tests[agree].max())


def is_comparable(passes: np.ndarray) -> bool:
    """Return whether there are two solutions or more, and a test."""
    return passes.shape[0] > 1 and passes.shape[1] > 0


def kept_solutions(
    passes: np.ndarray, solutions: np.ndarray, strategy: Strategy
) -> np.ndarray:
    """Return the solutions that a strategy keeps; none of a dropped problem.

    Args:
        passes: Whether solution i passes test j; not empty. bool [M, N]
        solutions: Their scores. [M]
        strategy: The strategy.

    Returns:
        bool [M]
    """
    best = solutions.max()
    kept = solutions == best
    is_trivial = best - solutions.min() <= strategy.least_spread
    if is_trivial or best < strategy.least_best or not passes[kept].all(0).any():
        return np.zeros(len(solutions), bool)
    return kept


def agreement(
    passes: np.ndarray, right: np.ndarray, solutions: np.ndarray, tests: np.ndarray
) -> float:
    """Return how far scores agree with checked tests on one problem.

    The mean of two criteria: the solution of the best score is right and that of the
    worst is wrong; the test of the best score is passed by the right solutions alone.
    Of equal scores the mean counts.

    Args:
        passes: Whether solution i passes test j; not empty. bool [M, N]
        right: Whether solution i passes the checked tests. bool [M]
        solutions: Scores of the solutions. [M]
        tests: Scores of the tests. [N]

    Returns:
        In [0, 1].
    """
    first = right[solutions == solutions.max()].mean()
    last = right[solutions == solutions.min()].mean()
    divides = (passes == right[:, None]).all(0)
    return float(first * (1.0 - last) + divides[tests == tests.max()].mean()) / 2.0
