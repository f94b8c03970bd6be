"""Settings of ``league``: opponents of self-play, and snapshots."""

from __future__ import annotations

from typing import Annotated, Self

from annotated_types import Interval
from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import Fraction, NonNegativeInt, OneOf, PositiveInt
from rllib_llm.selfplay.league import OPPONENTS

MIRROR = "mirror"


class LeagueSettings(RLlibConfig):
    """Defaults and fluent method of ``league``."""

    def _set_league_defaults(self) -> None:
        self.league_opponents = "even"
        self.league_mirror_fraction = 0.5
        self.league_pool_size = 4
        self.league_snapshot_win_rate = 0.7
        self.league_snapshot_min_games = 256
        self.league_snapshot_max_games: int | None = 1024
        self.league_decay = 0.99
        self.league_evaluation_opponent: str | None = None
        self.league_exploitability_interval = 0
        self.league_exploiter_fraction = 0.0
        self.league_exploiter_noise = 0.1

    @stores_settings("league_")
    def league(
        self,
        *,
        opponents: Annotated[str, OneOf((*OPPONENTS, MIRROR))] = NotProvided,
        mirror_fraction: Fraction = NotProvided,
        pool_size: Annotated[int, Interval(ge=1, le=64)] = NotProvided,
        snapshot_win_rate: Annotated[float, Interval(ge=0.51, le=0.99)] = NotProvided,
        snapshot_min_games: PositiveInt = NotProvided,
        snapshot_max_games: PositiveInt | None = NotProvided,
        decay: Annotated[float, Interval(ge=0.01, le=1)] = NotProvided,
        evaluation_opponent: str | None = NotProvided,
        exploitability_interval: NonNegativeInt = NotProvided,
        exploiter_fraction: Annotated[float, Interval(ge=0, le=0.99)] = NotProvided,
        exploiter_noise: Fraction = NotProvided,
    ) -> Self:
        """Choose the opponents of self-play.

        Args:
            opponents: Draw of a frozen opponent: "even" or "hard" (prioritised
                fictitious self-play, by win rate), "uniform", "latest"; or "mirror"
                for none: all games are against the live policy.
            mirror_fraction: Share of games against the live policy otherwise.
            pool_size: Number of opponents held at a time; each is a policy in memory,
                under LoRA a set of adapters.
            snapshot_win_rate: Win rate against every opponent at which the learner is
                frozen ...
            snapshot_min_games: ... after at least this number of games with opponents
                since the last snapshot,
            snapshot_max_games: ... and in any case after this number; None: never.
            decay: Weight that a pair's earlier games keep at each new one.
            evaluation_opponent: Policy of the other agents in evaluation, e.g. a
                scripted one; None: the live policy.
            exploitability_interval: Iterations between measurements of exploitability
                (small games of OpenSpiel); 0: never.
            exploiter_fraction: Share of games against the exact best response to the
                policy before the iteration (small games of perfect information,
                ``history="latest"``); they count in no win rate.
            exploiter_noise: Share of that opponent's turns that are random.
        """
        return self

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
