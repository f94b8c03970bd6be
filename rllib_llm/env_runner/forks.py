"""Forks of running episodes: paths, places and the decisions of a fork rule."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.places import Branch, place_of
from rllib_llm.env_runner.slots import Slot
from rllib_llm.forks.point import ForkPoint
from rllib_llm.seeding import stable_seed


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
    place: its parent was asked there.

    Args:
        slot: Slot of an episode with one agent.
        rule: The fork rule.
        budget: Number of episodes that may still be forked.
    """
    data, episode = slot.recorder.data, slot.recorder.episode
    turn = data.num_turns - 1
    task, (agent_state,) = slot.recorder.task, slot.recorder.agent_states
    if not budget or (task.place is not None and turn == task.place.turn):
        return
    parts = () if task.place is None else task.place.seed_parts
    logps = agent_state.turn.action_logps
    first = episode.get_extra_model_outputs(columns.TURN, 0) if turn else None
    info = episode.get_infos(-1) or {}
    point = ForkPoint(
        turn=turn,
        logps=logps,
        first_logps=logps if first is None else first.action_logps,
        after_tool=bool(turn and info.get("tool")),
        consecutive=slot.consecutive,
        budget=budget,
        rng=np.random.default_rng(
            stable_seed(task.seed, task.rollout, slot.attempt, *parts, "rule", turn)
        ),
    )
    slot.num_forks = min(rule(point), budget)
    slot.consecutive = slot.consecutive + 1 if slot.num_forks else 0
    if slot.num_forks:
        slot.place = place_of(episode, data, turn, consecutive=slot.consecutive)
