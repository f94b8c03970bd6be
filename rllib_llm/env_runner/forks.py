"""Forks of running episodes: paths, places and the decisions of a fork rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.places import Branch
from rllib_llm.env_runner.slots import Slot
from rllib_llm.forks.point import ForkPoint
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    from rllib_llm.data.types import Turn
    from rllib_llm.env_runner.recorder import AgentState


class ForkRule(Protocol):
    """A component of kind ``fork`` (:mod:`rllib_llm.forks`)."""

    @property
    def roots(self) -> int:
        """Number of a group's episodes that begin at the prompt."""

    def __call__(self, point: ForkPoint) -> int:
        """Return the number of episodes to fork."""


def begin_path(slot: Slot) -> None:
    """Write the path of the slot's episode, up to its own first turn."""
    task = slot.task
    assert task is not None
    place = task.place
    turn, before = (0, ()) if place is None else (place.turn, place.path)
    branch = Branch(turn, task.rollout, slot.attempt)
    slot.recorder.data.path = (*before, branch)
    slot.consecutive = 0 if place is None else place.consecutive


def plan_forks(slot: Slot, rule: ForkRule, budget: int) -> None:
    """Ask a fork rule whether episodes begin before the turn that was just sampled.

    Writes the slot's ``num_forks`` and ``place``. A fork's own first turn is no new
    place: its parent was asked there. Agents that act at once have one place.

    Args:
        slot: Slot of an episode whose environment is about to step.
        rule: The fork rule.
        budget: Number of episodes that may still be forked.
    """
    recorder = slot.recorder
    turn, task = recorder.env_t, recorder.task
    if not budget or (task.place is not None and turn == task.place.turn):
        return
    acting = recorder.acting
    parts = () if task.place is None else task.place.seed_parts
    infos = [state.episode.get_infos(-1) or {} for state in acting]
    point = ForkPoint(
        turn=turn,
        logps=np.concatenate([state.turn.action_logps for state in acting]),
        first_logps=np.concatenate([_first(s).action_logps for s in acting]),
        after_tool=bool(turn and any(info.get("tool") for info in infos)),
        consecutive=slot.consecutive,
        budget=budget,
        rng=np.random.default_rng(
            stable_seed(task.seed, task.rollout, slot.attempt, *parts, "rule", turn)
        ),
        agents=tuple(state.agent_id for state in acting),
    )
    slot.num_forks = min(rule(point), budget)
    slot.consecutive = slot.consecutive + 1 if slot.num_forks else 0
    if slot.num_forks:
        slot.place = recorder.place(turn, consecutive=slot.consecutive)


def _first(agent_state: AgentState) -> Turn:
    """Return the agent's first turn, which may be the one that was just sampled."""
    episode = agent_state.episode
    assert episode is not None and agent_state.turn is not None
    if not len(episode):
        return agent_state.turn
    turn: Turn = episode.get_extra_model_outputs(columns.TURN, 0)
    return turn
