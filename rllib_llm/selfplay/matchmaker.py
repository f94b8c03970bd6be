"""Matchmaker: a run's league with a fixed number of opponent policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.selfplay.exploiter import EXPLOITER
from rllib_llm.selfplay.league import League
from rllib_llm.selfplay.payoffs import GameResult
from rllib_llm.selfplay.ratings import Ratings

LEARNER = "learner"
_MEETS_EXPLOITER = 2  # part of the seed: independent of the league's draws


class Matchmaker:
    """Assigns policies to agents and keeps league, ratings and slots.

    A *slot* is a frozen policy that exists from the start; a snapshot of the learner
    overwrites its weights. A *member* of the league is the snapshot in a slot. Results
    and ratings belong to members, so they stay valid when a slot is overwritten.

    Args:
        policy: The policy in training.
        slots: The policies that hold opponents; empty for games against itself only.
        agents: The agents that the league assigns, in the environment's order.
        fixed: Policies of all other agents.
        exploiter_fraction: Share of games in which the exploiter plays all other
            agents. These games count in no win rate and no rating.
        league: Settings of :class:`League`.

    Raises:
        ConfigError: If a setting of the league is out of range.
        MissingExtraError: If openskill is not installed.
    """

    def __init__(
        self,
        policy: str,
        slots: Sequence[str],
        agents: Sequence[str],
        fixed: Mapping[str, str],
        exploiter_fraction: float = 0.0,
        **league: Any,
    ):
        self.policy, self.slots, self.agents = policy, tuple(slots), tuple(agents)
        self._fixed = dict(fixed)
        self._exploiter_fraction = exploiter_fraction
        self.league = League(LEARNER, max_members=len(slots) or None, **league)
        self.ratings = Ratings()
        self._slot_of: dict[str, str] = {}
        self._snapshots = 0

    def assignment(self, task_seed: int) -> dict[str, str]:
        """Return the policy of every agent in the games of a task."""
        names = self.league.assignment(task_seed, self.agents)
        policies = {LEARNER: self.policy, EXPLOITER: EXPLOITER, **self._slot_of}
        rng = np.random.default_rng([self.league.seed, _MEETS_EXPLOITER, task_seed])
        if rng.random() < self._exploiter_fraction:
            of_learner = self.agents[int(rng.integers(len(self.agents)))]
            names = {a: LEARNER if a == of_learner else EXPLOITER for a in self.agents}
        return {**self._fixed, **{agent: policies[n] for agent, n in names.items()}}

    def result(
        self, episode: int, assignment: Mapping[str, str], returns: Mapping[str, float]
    ) -> GameResult:
        """Return the result of a finished game with the names of members.

        Args:
            episode: Number of the episode, unique over the run.
            assignment: The task's :meth:`assignment` of the same iteration; later
                iterations may have other members in the slots.
            returns: Returns by agent; 0 if missing.
        """
        names = {slot: member for member, slot in self._slot_of.items()}
        names |= {self.policy: LEARNER, EXPLOITER: EXPLOITER}
        players = tuple(names[assignment[agent]] for agent in self.agents)
        in_order = tuple(float(returns.get(agent, 0.0)) for agent in self.agents)
        return GameResult(episode, players, in_order)

    def record(self, results: Iterable[GameResult]) -> None:
        """Add finished games to win rates and ratings, in the order of episodes."""
        # The exploiter is trained, too: results against it measure no fixed strength.
        games = [game for game in results if EXPLOITER not in game.players]
        self.league.record(games)
        self.ratings.record(games)

    def wants_snapshot(self) -> bool:
        """Return whether a snapshot of the learner is due and there are slots."""
        return bool(self.slots) and self.league.should_snapshot()

    def add_snapshot(self, iteration: int) -> str:
        """Add the learner as a new member and return the slot for its weights.

        The slot is a free one, or that of the retired member.
        """
        name = f"snapshot_{self._snapshots}"
        self._snapshots += 1
        retired = self.league.add(name, iteration)
        # The snapshot has the learner's weights, so its strength is the learner's.
        self.ratings.inherit(name, LEARNER)
        taken = set(self._slot_of.values())
        if retired:
            slot = self._slot_of.pop(retired[0])
        else:
            slot = next(s for s in self.slots if s not in taken)
        self._slot_of[name] = slot
        return slot

    def members(self) -> dict[str, str]:
        """Return the member in each occupied slot."""
        return {slot: name for name, slot in self._slot_of.items()}

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return the metrics; opponents by slot, so that the keys do not change."""
        iterations = {m.name: m.iteration for m in self.league.members}
        values: dict[tuple[str, ...], float] = {
            ("pool_size",): len(self.league.members),
            ("rating", LEARNER): self.ratings.rating(LEARNER)[0],
        }
        for slot, name in self.members().items():
            rate = self.league.payoffs.win_rate(LEARNER, name)
            values["win_rate", slot] = rate
            values["rating", slot] = self.ratings.rating(name)[0]
            values["member_iteration", slot] = iterations[name]
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, JSON-serialisable."""
        return {
            "league": self.league.state_dict(),
            "ratings": self.ratings.state_dict(),
            "slot_of": dict(self._slot_of),
            "snapshots": self._snapshots,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict` exactly.

        Raises:
            CheckpointError: If the checkpoint's league has other settings.
        """
        self.league.load_state(state["league"])
        self.ratings.load_state(state["ratings"])
        self._slot_of = dict(state["slot_of"])
        self._snapshots = state["snapshots"]
