"""A turn before which other episodes may begin, as fork rules see it."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class ForkPoint:
    """A turn that was just sampled, before the environment has received it.

    Episodes forked here sample this turn anew. Turns of agents that act at once are
    one: their tokens follow each other.

    Attributes:
        turn: Its number in the episode, that of the environment's step.
        logps: Log-probabilities of its tokens, in nats. [T]
        first_logps: Those of the agent's first turn. [T]
        after_tool: Whether the observation before it is a tool's result.
        consecutive: Number of places in a row, the last one before this turn, at which
            the episode was forked.
        budget: Episodes that may still be forked from this one and its forks.
        rng: Random numbers that depend on the place alone.
        agents: AgentIDs of the agents that act.
    """

    turn: int
    logps: np.ndarray
    first_logps: np.ndarray
    after_tool: bool
    consecutive: int
    budget: int
    rng: np.random.Generator
    agents: tuple[str, ...] = ()


def sampled_entropy(logps: np.ndarray, tokens: int) -> float:
    """Return the mean of ``-logp`` over the first tokens, in nats per token.

    The expectation of ``-logp`` of a sampled token is the entropy of its distribution,
    so this is an unbiased estimate that needs no other token's probability.

    Args:
        logps: Log-probabilities of sampled tokens. [T]
        tokens: Number of tokens to average over, at most all.
    """
    return float(-np.mean(logps[:tokens])) if len(logps) else 0.0


def check_rule(*, roots: int, branches: int) -> None:
    """Check the settings that all fork rules have.

    Raises:
        ValueError: If one is smaller than 1.
    """
    for name, value in (("roots", roots), ("branches", branches)):
        if value < 1:
            raise ValueError(f"{name}={value} must be >= 1.")
