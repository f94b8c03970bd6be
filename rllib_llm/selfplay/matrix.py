"""Policy-swap matrix: mean return of each policy for each agent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from rllib_llm.selfplay.payoffs import GameResult


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """Mean return over games.

    Attributes:
        mean: NaN without games.
        half_width: Half of the 95 % interval by Student's t; NaN below two games.
        games: Number of games.
    """

    mean: float
    half_width: float
    games: int

    def __str__(self) -> str:
        if not self.games:
            return "-"
        if math.isnan(self.half_width):
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ± {self.half_width:.3f}"


class SwapMatrix:
    """Mean returns by agent and policy, and by assignment.

    Exchanging the policy of one role shows which role a team's success depends on, and
    whether roles have specialised: a policy fails for an agent that it was not trained
    for.

    Args:
        agents: Names of the agents, in the order of :attr:`GameResult.players`.
        results: Initial games.
    """

    def __init__(self, agents: Sequence[str], results: Iterable[GameResult] = ()):
        self.agents = tuple(agents)
        self._returns: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
        self.record(results)

    def record(self, results: Iterable[GameResult]) -> None:
        """Add finished games.

        Raises:
            ValueError: If a game has another number of agents.
        """
        for result in results:
            if len(result.players) != len(self.agents):
                raise ValueError(
                    f"Episode {result.episode} has the players {result.players}; a "
                    f"game needs one for each of the agents {self.agents}. Record "
                    "games of one environment only."
                )
            self._returns.setdefault(result.players, []).append(result.returns)

    def policies(self) -> list[str]:
        """Return the names of all policies that have played, sorted."""
        return sorted({name for assignment in self._returns for name in assignment})

    def cell(self, agent: str, policy: str) -> Cell:
        """Return the mean return of ``agent`` with ``policy``, over all partners."""
        index = self.agents.index(agent)
        return _cell(
            [
                returns[index]
                for assignment, games in self._returns.items()
                if assignment[index] == policy
                for returns in games
            ]
        )

    def assignment(self, players: Sequence[str], agent: str) -> Cell:
        """Return the mean return of ``agent`` in games of exactly these players."""
        index = self.agents.index(agent)
        return _cell([r[index] for r in self._returns.get(tuple(players), [])])

    def table(self) -> dict[str, dict[str, Cell]]:
        """Return ``{agent: {policy: cell}}``."""
        names = self.policies()
        return {s: {name: self.cell(s, name) for name in names} for s in self.agents}

    def to_markdown(self) -> str:
        """Return the table with one row per policy and one column per agent."""
        table = self.table()
        rows = [
            [name, *(str(table[agent][name]) for agent in self.agents)]
            for name in self.policies()
        ]
        lines = [["policy", *self.agents], ["---"] * (1 + len(self.agents)), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: list[float]) -> Cell:
    count = len(values)
    mean = float(np.mean(values)) if count else math.nan
    if count < 2:
        return Cell(mean, math.nan, count)
    error = float(np.std(values, ddof=1)) / math.sqrt(count)  # standard error
    from scipy import stats

    return Cell(mean, float(stats.t.ppf(0.975, count - 1)) * error, count)
