"""Settings of ``league``: opponents of self-play, and snapshots."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Interval

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.schema import Fraction, NonNegativeInt, OneOf, PositiveInt
from rllib_llm.selfplay.league import OPPONENTS

MIRROR = "mirror"


class LeagueSettings(DeclaredSettings):
    """Settings of ``league``."""

    league = fluent_method("Choose the opponents of self-play.", prefix="league_")

    league_opponents: Annotated[str, OneOf((*OPPONENTS, MIRROR))] = setting(
        "even",
        """Draw of a frozen opponent: "even" or "hard" (prioritised fictitious
        self-play, by win rate), "uniform", "latest"; or "mirror" for none: all games
        are against the live policy.""",
    )
    league_mirror_fraction: Fraction = setting(
        0.5, "Share of games against the live policy otherwise."
    )
    league_pool_size: Annotated[int, Interval(ge=1, le=64)] = setting(
        4,
        """Number of opponents held at a time; each is a policy in memory, under LoRA a
        set of adapters.""",
    )
    league_snapshot_win_rate: Annotated[float, Interval(ge=0.51, le=0.99)] = setting(
        0.7, "Win rate against every opponent at which the learner is frozen ..."
    )
    league_snapshot_min_games: PositiveInt = setting(
        256,
        """... after at least this number of games with opponents since the last
        snapshot,""",
    )
    league_snapshot_max_games: PositiveInt | None = setting(
        1024, "... and in any case after this number; None: never."
    )
    league_decay: Annotated[float, Interval(ge=0.01, le=1)] = setting(
        0.99, "Weight that a pair's earlier games keep at each new one."
    )
    league_evaluation_opponent: str | None = setting(
        None,
        """Policy of the other agents in evaluation, e.g. a scripted one; None: the
        live policy.""",
    )
    league_exploitability_interval: NonNegativeInt = setting(
        0,
        """Iterations between measurements of exploitability (small games of
        OpenSpiel); 0: never.""",
    )
    league_exploiter_fraction: Annotated[float, Interval(ge=0, le=0.99)] = setting(
        0.0,
        """Share of games against the exact best response to the policy before the
        iteration (small games of perfect information, ``history="latest"``); they
        count in no win rate.""",
    )
    league_exploiter_noise: Fraction = setting(
        0.1, "Share of that opponent's turns that are random."
    )

    # Derived settings ----------------------------------------------------------------

    @property
    def opponent_slots(self) -> tuple[str, ...]:
        """ModuleIDs of the policies that hold frozen opponents."""
        size = 0 if self.league_opponents == MIRROR else self.league_pool_size
        return tuple(f"opponent_{i}" for i in range(size))

    def league_settings(self) -> dict[str, object]:
        """Return the keyword arguments of :class:`rllib_llm.selfplay.League`."""
        opponents = self.league_opponents
        return {
            # The League needs a rule even if no opponent is ever drawn.
            "opponents": "uniform" if opponents == MIRROR else opponents,
            "mirror_fraction": self.league_mirror_fraction,
            "snapshot_win_rate": self.league_snapshot_win_rate,
            "snapshot_min_games": self.league_snapshot_min_games,
            "snapshot_max_games": self.league_snapshot_max_games,
            "decay": self.league_decay,
            "seed": self.seed or 0,
        }
