"""Forks where the policy is uncertain after a tool's result: ARPO, AEPO."""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.forks.point import ForkPoint, check_rule, sampled_entropy
from rllib_llm.losses._checks import check_choice, check_unit_interval

AFTER = ("tool", "turn")


@component("fork", "arpo", paper="ARPO, arXiv:2507.19849")
class Arpo:
    """Fork with a probability that grows with the entropy of the next turn.

    ``P = chance + weight * (H_t - H_0)``, where ``H`` is the entropy of a turn's first
    tokens (:func:`~rllib_llm.forks.point.sampled_entropy`), ``t`` the turn after the
    result, and 0 the episode's first turn. A higher entropy after a tool's result than
    at the start makes a fork more likely.

    Args:
        roots: Episodes of a group that begin at the prompt.
        after: "tool": only after the result of a tool; "turn": after any turn.
        branches: Episodes forked at a place.
        chance: Probability at equal entropies, in [0, 1].
        weight: Change of the probability per nat, >= 0.
        tokens: Tokens of a turn that count for its entropy.
    """

    def __init__(
        self,
        *,
        roots: int = 8,
        after: str = "tool",
        branches: int = 1,
        chance: float = 0.5,
        weight: float = 0.2,
        tokens: int = 20,
    ):
        check_rule(roots=roots, branches=branches)
        check_choice("after", after, AFTER)
        check_unit_interval(chance=chance)
        if weight < 0 or tokens < 1:
            raise ValueError(f"weight={weight} must be >= 0, tokens={tokens} >= 1.")
        self.roots, self.branches, self.after = roots, branches, after
        self.chance, self.weight, self.tokens = chance, weight, tokens

    def __call__(self, point: ForkPoint) -> int:
        """Return the number of episodes to fork."""
        if not point.turn or (self.after == "tool" and not point.after_tool):
            return 0
        return self.branches if self._is_forked(point) else 0

    def _rise(self, point: ForkPoint) -> float:
        """Return the difference of the entropies, in nats per token."""
        now = sampled_entropy(point.logps, self.tokens)
        return now - sampled_entropy(point.first_logps, self.tokens)

    def _is_forked(self, point: ForkPoint) -> bool:
        draw = point.rng.random() - self.weight * self._rise(point)
        return draw <= self.chance


@component("fork", "aepo", paper="AEPO, arXiv:2510.14545")
class Aepo(Arpo):
    """As ``arpo``, but the less likely the more places in a row were forked.

    ``(U + weight * (H_t - H_0)) * max(0, 1 - penalty * consecutive) >= 1 - chance``
    with ``U`` uniform in [0, 1], so that one chain does not use up the budget.

    Args:
        penalty: Reduction per fork in a row, in [0, 1].
        roots: As for ``arpo``.
        after: As for ``arpo``.
        branches: As for ``arpo``.
        chance: As for ``arpo``.
        weight: As for ``arpo``.
        tokens: As for ``arpo``.
    """

    def __init__(
        self,
        *,
        penalty: float = 0.05,
        roots: int = 8,
        after: str = "tool",
        branches: int = 1,
        chance: float = 0.5,
        weight: float = 0.2,
        tokens: int = 20,
    ):
        super().__init__(
            roots=roots,
            after=after,
            branches=branches,
            chance=chance,
            weight=weight,
            tokens=tokens,
        )
        check_unit_interval(penalty=penalty)
        self.penalty = penalty

    def _is_forked(self, point: ForkPoint) -> bool:
        draw = point.rng.random() + self.weight * self._rise(point)
        factor = max(0.0, 1.0 - self.penalty * point.consecutive)
        return draw * factor >= 1.0 - self.chance
