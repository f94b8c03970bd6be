"""Household tasks in text, with the rules and the wording of ALFWorld."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.household.expert import advise
from rllib_llm.envs.household.instances import TASKS, Goal, Instance, draw, goals
from rllib_llm.envs.household.rooms import Room
from rllib_llm.envs.household.world import NOTHING
from rllib_llm.envs.parsing import (
    last_match,
    require_choice,
    require_float,
    require_int,
)
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

_THING = r"[a-z]+[ \t]+\d+"
# Single words must be alone on a line, because they also occur in sentences.
_COMMAND = re.compile(
    rf"\b(?:go[ \t]+to|open|close|examine|use)[ \t]+{_THING}\b"
    rf"|\b(?:take[ \t]+{_THING}[ \t]+from|move[ \t]+{_THING}[ \t]+to"
    rf"|(?:clean|heat|cool|slice)[ \t]+{_THING}[ \t]+with)[ \t]+{_THING}\b"
    r"|(?:(?<=\n)|(?<=[:>])|^)[ \t]*(?:look|inventory|help)[ \t.]*(?=\n|$)",
    re.IGNORECASE,
)


@register_text_env("household-v0")
class Household(TextEnv):
    """Find things in a room, treat them, and put them where they belong. Return 1.

    Rules, commands and replies are those of ALFWorld (Shridhar et al. 2021,
    arXiv:2010.03768), the rooms those of AI2-THOR; the positions of objects are drawn
    anew. The test split has its own goals, and by default its own rooms.
    """

    max_turns = 30
    format_hint = NOTHING  # the reply of ALFWorld

    def start(
        self,
        rng: np.random.Generator,
        tasks: Sequence[str] = tuple(TASKS),
        max_receptacles: int = 8,
        clutter: int = 8,
        closed: float = 1.0,
        test_rooms: str = "unseen",
    ) -> str:
        """Draw a room and a task.

        Args:
            rng: Generator of both, and of the positions of objects.
            tasks: Kinds of tasks: "put", "light", "clean", "heat", "cool", "two".
            max_receptacles: Maximum number of receptacles in a room, in [3, 60].
            clutter: Maximum number of objects unrelated to the task, in [0, 100].
            closed: Share of receptacles with doors that are closed, in [0, 1].
            test_rooms: Rooms of the test split: "unseen", reserved for it, or "seen",
                those of training.
        """
        source = random.Random(int(rng.integers(2**62)))
        self.instance: Instance = draw(
            source,
            self._choices(tasks, test_rooms, source),
            receptacles=require_int("max_receptacles", max_receptacles, 3, 60),
            clutter=require_int("clutter", clutter, 0, 100),
            closed=require_float("closed", closed, 0.0, 1.0),
        )
        self.world = self.instance.world()
        self.goal: Goal = self.instance.goal
        self._reached = 0
        return (
            f"-= Welcome to TextWorld, ALFRED! =-\n\n{self.world.introduction()}\n\n"
            f"Your task is to: {self.instance.text}."
        )

    def parse(self, completion: str) -> str | None:
        """Return the last command."""
        match = last_match(_COMMAND, completion)
        return " ".join(match.group().lower().split()).strip(" .") if match else None

    def reply(self, action: str) -> TurnResult:
        """Execute a command; an impossible one changes nothing."""
        text = self.world.do(action)
        now = self.goal.reached(self.world)
        self._reached = max(self._reached, now)
        is_done = now == len(self.goal.steps)
        metrics = {"subgoals": self._reached / len(self.goal.steps)}
        return TurnResult(
            text, float(is_done), is_done, success=is_done, metrics=metrics
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the expert's command; see :mod:`rllib_llm.envs.household.expert`."""
        return advise(self.world, self.goal)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random possible command."""
        commands = self.admissible_actions()
        return commands[int(rng.integers(len(commands)))]

    def admissible_actions(self) -> list[str]:
        """Return all possible commands, in alphabetical order."""
        return list(self.world.commands())

    def _choices(
        self, tasks: Sequence[str], test_rooms: str, source: random.Random
    ) -> tuple[tuple[Room, list[Goal]], ...]:
        require_choice("test_rooms", test_rooms, ("unseen", "seen"))
        is_list = isinstance(tasks, (list, tuple)) and len(tasks) > 0
        if not is_list or any(task not in tuple(TASKS) for task in tasks):
            raise ConfigError(
                f"tasks={tasks!r} must be a list of one or more of {', '.join(TASKS)}."
            )
        unseen = self.split == "test" and test_rooms == "unseen"
        return goals(source.choice(list(tasks)), self.split, unseen)
