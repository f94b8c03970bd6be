"""League: a learner and frozen snapshots of it as opponents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rllib_llm.envs.parsing import require_choice, require_float, require_int
from rllib_llm.errors import CheckpointError, ConfigError, did_you_mean
from rllib_llm.selfplay.payoffs import GameResult, Payoffs

# Part of the seeds: draws of opponents and of the learner's agent are independent.
_OPPONENT, _AGENT = 0, 1


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """Frozen snapshot of the learner.

    Attributes:
        name: The policy's name, e.g. a ModuleID.
        iteration: Training iteration of the snapshot.
    """

    name: str
    iteration: int


def prefer_hard(win_rate: np.ndarray) -> np.ndarray:
    """Return the weights ``(1 - p)^2``, which prefer opponents that beat the learner.

    AlphaStar's ``f_hard`` (Vinyals et al. 2019, Methods, prioritised fictitious
    self-play) with exponent 2.

    Args:
        win_rate: The learner's win rate against each opponent. [members]
    """
    return (1.0 - win_rate) ** 2


def prefer_even(win_rate: np.ndarray) -> np.ndarray:
    """Return the weights ``p (1 - p)``, which prefer opponents of equal strength.

    AlphaStar's ``f_var`` (as in :func:`prefer_hard`).

    Args:
        win_rate: The learner's win rate against each opponent. [members]
    """
    return win_rate * (1.0 - win_rate)


_WEIGHTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hard": prefer_hard,
    "even": prefer_even,
    "uniform": np.ones_like,
    "latest": lambda p: np.eye(1, len(p), len(p) - 1)[0],  # 1 for the newest
}
OPPONENTS = tuple(_WEIGHTS)


class League:
    """Draws opponents, keeps the payoff matrix and decides when to take snapshots.

    The learner plays against itself in a share of the games (``mirror_fraction``), and
    in the others against one frozen member, drawn by ``opponents``. A draw depends only
    on the seeds and the league's state: all rollouts of a task have the same opponent,
    also in a resumed run. Draw once per episode, not within one.

    A snapshot is due when the learner's win rate against *every* member is at least
    ``snapshot_win_rate`` after ``snapshot_min_games`` games with members since the
    last one, and in any case after ``snapshot_max_games``. In an empty league it is
    always due.

    Args:
        learner: Name of the policy in training.
        opponents: ``"hard"`` (:func:`prefer_hard`), ``"even"`` (:func:`prefer_even`),
            ``"uniform"`` or ``"latest"``.
        mirror_fraction: Share of games against itself, in [0, 1].
        snapshot_win_rate: In [0.51, 0.99].
        snapshot_min_games: At least 1.
        snapshot_max_games: At least ``snapshot_min_games``; None means no limit.
        max_members: Beyond this number, :meth:`add` retires the member with the
            learner's highest win rate; None means no limit.
        decay: As in :class:`Payoffs`.
        seed: Seed of all draws, >= 0.

    Raises:
        ConfigError: If a setting is out of range.
    """

    def __init__(
        self,
        learner: str = "learner",
        *,
        opponents: str = "hard",
        mirror_fraction: float = 0.5,
        snapshot_win_rate: float = 0.7,
        snapshot_min_games: int = 64,
        snapshot_max_games: int | None = 2048,
        max_members: int | None = None,
        decay: float = 0.99,
        seed: int = 0,
    ):
        self._settings: dict[str, Any] = {
            "learner": learner,
            "opponents": opponents,
            "mirror_fraction": mirror_fraction,
            "snapshot_win_rate": snapshot_win_rate,
            "snapshot_min_games": snapshot_min_games,
            "snapshot_max_games": snapshot_max_games,
            "max_members": max_members,
            "decay": decay,
            "seed": seed,
        }
        _check_settings(self._settings)
        self.learner, self.seed = learner, seed
        self.payoffs = Payoffs(decay)
        self.members: list[Member] = []
        self._retired: list[str] = []
        self._games_since_snapshot = 0

    # Opponents -------------------------------------------------------------------

    def probabilities(self) -> dict[str, float]:
        """Return the probability of each opponent, including the learner itself."""
        if not self.members:
            return {self.learner: 1.0}
        mirror = self._settings["mirror_fraction"]
        weights = _WEIGHTS[self._settings["opponents"]](self._win_rates())
        # The sum is positive, because the prior keeps win rates strictly between 0 and
        # 1.
        shares = (1.0 - mirror) * weights / weights.sum()
        names = [member.name for member in self.members]
        return {self.learner: mirror, **dict(zip(names, shares.tolist(), strict=True))}

    def choose(self, task_seed: int, position: int) -> str:
        """Return the opponent that plays against the learner at a position.

        Args:
            task_seed: Seed of the task (not of the rollout), >= 0.
            position: Index of the opponent's agent, >= 0.

        Returns:
            A member's name, or the learner's own for a mirror game.
        """
        chances = self.probabilities()
        rng = np.random.default_rng([self.seed, _OPPONENT, task_seed, position])
        return str(rng.choice(list(chances), p=list(chances.values())))

    def assignment(self, task_seed: int, agents: Sequence[str]) -> dict[str, str]:
        """Assign the learner to a random agent and opponents to all others.

        Args:
            task_seed: As in :meth:`choose`.
            agents: The environment's agents.

        Returns:
            The policy's name for each agent.
        """
        rng = np.random.default_rng([self.seed, _AGENT, task_seed])
        position = int(rng.integers(len(agents)))  # of the learner
        return {
            agent: self.learner if i == position else self.choose(task_seed, i)
            for i, agent in enumerate(agents)
        }

    # Results -----------------------------------------------------------------------

    def record(self, results: Iterable[GameResult]) -> None:
        """Add finished games, in the order of their episodes.

        Leave out games that were truncated, failed, or changed a player midway. Games
        of retired members are ignored: their policies may still have been playing.

        Raises:
            ValueError: If a player was never of this league.
        """
        for result in sorted(results, key=lambda result: result.episode):
            for name in result.players:
                if name not in self._names():
                    hint = did_you_mean(name, self._names())
                    raise ValueError(
                        f"Episode {result.episode}: {name!r} is not in this league. "
                        f"{hint} Record games of its learner and members only."
                    )
            if not set(self._retired).intersection(result.players):
                self.payoffs.record(result)
                # Games of the learner against itself are not games with members.
                self._games_since_snapshot += len(set(result.players)) > 1

    def should_snapshot(self) -> bool:
        """Return whether a snapshot of the learner is due."""
        if not self.members:
            return True
        games, most = self._games_since_snapshot, self._settings["snapshot_max_games"]
        if most is not None and games >= most:
            return True
        # The minimum, not the mean: a learner may beat most members and lose to one.
        worst = self._win_rates().min()
        enough = games >= self._settings["snapshot_min_games"]
        return bool(enough and worst >= self._settings["snapshot_win_rate"])

    def add(self, name: str, iteration: int) -> list[str]:
        """Add a snapshot of the learner.

        Args:
            name: A name that no member has had.
            iteration: The training iteration.

        Returns:
            Names of the retired members (``max_members``), whose policies are no longer
            needed.
        """
        if name in self._names():
            raise ConfigError(
                f"The league already has or had a member {name!r}. Use another name."
            )
        self.members.append(Member(name, iteration))
        self._games_since_snapshot = 0
        most = self._settings["max_members"]
        if most is None or len(self.members) <= most:
            return []
        # Without the newest, which has no games yet and a prior win rate of 1/2.
        easiest = self.members[int(self._win_rates()[:-1].argmax())]
        self.members.remove(easiest)
        self.payoffs.forget(easiest.name)
        self._retired.append(easiest.name)
        return [easiest.name]

    # Checkpoints ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, JSON-serialisable."""
        return {
            "settings": dict(self._settings),
            "members": [[member.name, member.iteration] for member in self.members],
            "retired": list(self._retired),
            "payoffs": self.payoffs.state_dict(),
            "games_since_snapshot": self._games_since_snapshot,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict` exactly.

        Raises:
            CheckpointError: If the checkpoint's league has other settings.
        """
        for name, value in state["settings"].items():
            if self._settings.get(name) != value:
                raise CheckpointError(
                    f"The checkpoint's league has {name}={value!r}, this run's has "
                    f"{self._settings.get(name)!r}. Resume with the same settings."
                )
        self.members = [Member(name, iteration) for name, iteration in state["members"]]
        self._retired = list(state["retired"])
        self.payoffs.load_state(state["payoffs"])
        self._games_since_snapshot = state["games_since_snapshot"]

    def _names(self) -> set[str]:
        """Return the names of the learner and of all current and retired members."""
        return {self.learner, *self._retired, *(member.name for member in self.members)}

    def _win_rates(self) -> np.ndarray:
        """Return the learner's win rates. [members]"""
        rates = [self.payoffs.win_rate(self.learner, m.name) for m in self.members]
        return np.asarray(rates)


def _check_settings(settings: dict[str, Any]) -> None:
    if not isinstance(settings["learner"], str) or not settings["learner"]:
        raise ConfigError(f"learner={settings['learner']!r} must be a non-empty name.")
    require_choice("opponents", settings["opponents"], OPPONENTS)
    for name, low, high in (
        ("mirror_fraction", 0.0, 1.0),
        ("snapshot_win_rate", 0.51, 0.99),
        ("decay", 0.01, 1.0),
    ):
        require_float(name, settings[name], low, high)
    least = require_int("snapshot_min_games", settings["snapshot_min_games"], 1, 10**9)
    for name, low in (("snapshot_max_games", least), ("max_members", 1)):
        if settings[name] is not None:
            require_int(name, settings[name], low, 10**9)
    require_int("seed", settings["seed"], 0, 2**63)
